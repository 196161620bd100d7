// w4a8: y[M, N] = x[M, K] W[N, K]^T + bias over weights stored in four bits; x and y are floats or
// bfloat16, and x is quantised to int8 in the call, as w8a8.cpp has it.
//
//     W ~ scale[row] * (byte - 128)       byte = (step[run] * nibble + begin[run]) >> 4
//
// A run is 32 columns of a row. Step and begin have four bits behind the point. Bytes are those that
// w8a8 multiplies by, and products are the same to the bit.
//
// Packed: panels of 16 rows of W. Each group of 256 columns has the steps of its runs, their begins,
// then lines of eight columns: the first four in the low nibbles, in the order of w8a8's steps.
//
//     panel[N / 16] {
//         float scale[16];
//         bf16 outliers[8][16 rows][2 columns];            if there are any, as w8a8.cpp has them
//         { uint8_t step[8][16]; uint16_t begin[8][16]; uint8_t lines[256 / 8][16 rows][4]; }[]
//     }
//
// Beyond W all weights are 0. Sets without byte dot products (VNNI) export nothing.
#include "linear/quantised/int4_packing.h"
#include "linear/quantised/int8_linear.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

struct Nibbles {
    template <class T>
    static void pack(const T* rows, int64_t count, const Weights& to, uint8_t* out) {
        pack_nibbles(rows, count, to, out);
    }

    template <class T>
    static void unpack(const Weights& weights, int64_t row, T* y) {
        const uint8_t* panel = weights.panel(row / LANES);
        const int64_t r = row % LANES;
        float scale;
        memcpy(&scale, panel + r * sizeof scale, sizeof scale);
        for (int64_t i = 0; i < weights.num_columns; i++) {
            const int64_t line = weights.head_lines() + i / GROUP * GROUP_LINES;
            uint8_t* lines = (uint8_t*)panel + line * LINE;
            const int64_t at = i % GROUP, run = at / RUN;
            const uint8_t both = lines[(HEAD_LINES + at / 8) * LINE + r * QUAD + at % QUAD];
            const int32_t nibble = at % 8 < QUAD ? both & 15 : both >> 4;
            const int32_t byte = byte_of(nibble, step_at(lines, run)[r], begin_at(lines, run)[r]);
            float share = float(byte - ZERO);
            is_outlier(weights, panel, r, i, &share);
            store_as(y + i, share * scale);
        }
    }
};

}  // namespace

extern "C" int64_t quire_w4a8_lines(int64_t k) { return 1 + nibble_lines(k); }

extern "C" void quire_w4a8_pack(const void* weight, bool is_bf16, const int32_t* outliers,
                                const float* importance, int64_t n, int64_t k, uint8_t* packed,
                                int64_t num_threads) {
    const Weights to = {packed, n, k, true, outliers, importance};
    pack_all<Nibbles>(weight, is_bf16, to, num_threads);
}

extern "C" void quire_w4a8(const void* x, bool is_bf16, int64_t m, const uint8_t* packed,
                           const int32_t* outliers, const void* bias, int64_t n, int64_t k,
                           void* y, char* scratch, int64_t num_threads) {
    multiply(x, is_bf16, m, {packed, n, k, true, outliers}, bias, y, scratch, num_threads);
}

extern "C" bool quire_w4a8_rows(const int64_t* indices, int64_t count, const uint8_t* packed,
                                const int32_t* outliers, bool is_bf16, int64_t n, int64_t k,
                                void* y) {
    return unpack_rows<Nibbles>({packed, n, k, true, outliers}, indices, count, is_bf16, y);
}

#endif
