// w8a8: y[M, N] = x[M, K] W[N, K]^T + bias over weights stored as int8; x and y are floats or bfloat16,
// and x is quantised to int8 in the call.
//
//     w ~ scale[row of W] * (byte - 128)            x ~ scale[row of x, group of columns] * int8
//
// Rows of x are quantised within the call, by their largest number in each group of columns, so
// that an outlier coarsens only its neighbours. Products are summed exactly in integers, group by
// group, and groups in floats, from the first to the last: a row's result is the same in any tile.
//
// Packed: panels of 16 rows of W, so that one vector holds the same 4 columns of 16 rows:
//
//     panel[N / 16] { float scale[16]; uint8_t steps[K / 4][16 rows][4 columns]; }   zeros beyond
//
// Sets without byte dot products (VNNI) export nothing.
#include "linear/quantised/int8_packing.h"
#include "linear/quantised/int8_store.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

struct Packing {
    const void* weight;
    uint8_t* packed;
    bool is_bf16;
    int64_t num_rows, num_columns;
    int64_t next_panel;
};

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    const int64_t k = p.num_columns, panel_bytes = (ratio_up(k, QUAD) + 1) * LINE;
    const int64_t num_panels = ratio_up(p.num_rows, LANES);
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < num_panels) {
        const int64_t first = panel * LANES, count = smaller(LANES, p.num_rows - first);
        uint8_t* out = p.packed + panel * panel_bytes;
        p.is_bf16 ? pack_panel((const bf16*)p.weight + first * k, k, count, k, out)
                  : pack_panel((const float*)p.weight + first * k, k, count, k, out);
    }
}

template <class T>
void unpack_row(const Weights& weights, int64_t row, T* y) {
    const uint8_t* panel = weights.panel(row / LANES);
    const int64_t r = row % LANES;
    float scale;
    memcpy(&scale, panel + r * sizeof scale, sizeof scale);
    for (int64_t i = 0; i < weights.num_columns; i++) {
        int32_t byte = panel[(i / QUAD + 1) * LINE + r * QUAD + i % QUAD];
        store_as(y + i, float(byte - ZERO) * scale);
    }
}

}  // namespace

extern "C" void quire_w8a8_pack(const void* weight, bool is_bf16, int64_t n, int64_t k,
                                uint8_t* packed, int64_t num_threads) {
    Packing packing = {weight, packed, is_bf16, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

extern "C" int64_t quire_w8a8_scratch(int64_t k) { return row_bytes(k); }

extern "C" void quire_w8a8(const void* x, bool is_bf16, int64_t m, const uint8_t* packed,
                           const void* bias, int64_t n, int64_t k, void* y, char* scratch,
                           int64_t num_threads) {
    store_product(x, is_bf16, m, {packed, n, k}, bias, y, scratch, num_threads);
}

extern "C" bool quire_w8a8_rows(const int64_t* indices, int64_t count, const uint8_t* packed,
                                bool is_bf16, int64_t n, int64_t k, void* y) {
    Weights weights = {packed, n, k};
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        is_bf16 ? unpack_row(weights, indices[i], (bf16*)y + i * k)
                : unpack_row(weights, indices[i], (float*)y + i * k);
    }
    return true;
}

#endif
