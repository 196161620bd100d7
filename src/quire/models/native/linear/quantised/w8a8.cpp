// w8a8: y[M, N] = x[M, K] W[N, K]^T + bias over weights stored as int8; x and y are floats or bfloat16,
// and x is quantised to int8 in the call.
//
//     w ~ scale[row of W] * (byte - 128)            x ~ scale[row of x, group of columns] * int8
//
// Rows of x are quantised within the call, by their largest number in each group of columns.
// Products are summed exactly in integers, group by group, and groups in floats, from the first to
// the last: a row's result is the same in any tile.
//
// A weight may have outliers: 16 columns of which x is large (LLM.int8(), Dettmers et al., 2022).
// There both are bfloat16, and both count as 0 elsewhere. Their products begin the sums.
//
// Packed: panels of 16 rows of W, so that one vector holds the same 4 columns of 16 rows:
//
//     panel[N / 16] {
//         float scale[16];
//         bf16 outliers[8][16 rows][2 columns];            as shares of the scale, if there are any
//         uint8_t steps[K / 4][16 rows][4 columns];        zeros beyond
//     }
//
// Sets without byte dot products (VNNI) export nothing.
#include "linear/quantised/int8_packing.h"
#include "linear/quantised/int8_linear.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

struct Bytes {
    template <class T>
    static void pack(const T* rows, int64_t count, const Weights& to, uint8_t* out) {
        pack_panel(rows, count, to, out);
    }

    template <class T>
    static void unpack(const Weights& weights, int64_t row, T* y) {
        const uint8_t* panel = weights.panel(row / LANES);
        const int64_t r = row % LANES;
        float scale;
        memcpy(&scale, panel + r * sizeof scale, sizeof scale);
        for (int64_t i = 0; i < weights.num_columns; i++) {
            const int64_t line = weights.head_lines() + i / QUAD;
            float share = float(panel[line * LINE + r * QUAD + i % QUAD] - ZERO);
            is_outlier(weights, panel, r, i, &share);
            store_as(y + i, share * scale);
        }
    }
};

}  // namespace

extern "C" void quire_w8a8_pack(const void* weight, bool is_bf16, const int32_t* outliers,
                                int64_t n, int64_t k, uint8_t* packed, int64_t num_threads) {
    pack_all<Bytes>(weight, is_bf16, {packed, n, k, false, outliers}, num_threads);
}

extern "C" int64_t quire_w8a8_scratch(int64_t k) { return row_bytes(k); }

extern "C" void quire_w8a8(const void* x, bool is_bf16, int64_t m, const uint8_t* packed,
                           const int32_t* outliers, const void* bias, int64_t n, int64_t k,
                           void* y, char* scratch, int64_t num_threads) {
    multiply(x, is_bf16, m, {packed, n, k, false, outliers}, bias, y, scratch, num_threads);
}

extern "C" bool quire_w8a8_rows(const int64_t* indices, int64_t count, const uint8_t* packed,
                                const int32_t* outliers, bool is_bf16, int64_t n, int64_t k,
                                void* y) {
    return unpack_rows<Bytes>({packed, n, k, false, outliers}, indices, count, is_bf16, y);
}

#endif
