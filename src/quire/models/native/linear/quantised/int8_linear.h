// y[M, N] = x[M, K] W[N, K]^T + bias of quantised rows of x, by tiles where they pay, else by dot
// products in vector registers; and how whole weights are packed for it and read.
#pragma once

#include "linear/quantised/int8_products.h"
#if QUIRE_HAS_TILES
#include "linear/quantised/tile_int8.h"
#endif

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

// Returns the bytes that each quantised row of x takes.
inline int64_t row_bytes(int64_t k) {
    return round_up(k, LINE) + ratio_up(k, GROUP) * int64_t(sizeof(float) + sizeof(int32_t)) +
           OUTLIERS * int64_t(sizeof(float) + sizeof(bf16));
}

inline Quantised within(char* scratch, int64_t m, int64_t k) {
    Quantised rows;
    rows.stride = round_up(k, LINE);
    rows.num_groups = ratio_up(k, GROUP);
    rows.numbers = (int8_t*)scratch;
    rows.scales = (float*)(scratch + m * rows.stride);
    rows.offsets = (int32_t*)(rows.scales + m * rows.num_groups);
    rows.outliers = (float*)(rows.offsets + m * rows.num_groups);
    rows.short_outliers = (bf16*)(rows.outliers + m * OUTLIERS);
    return rows;
}

inline void multiply_quantised(Linear& l, int64_t num_threads) {
#if QUIRE_HAS_TILES
    if (l.num_rows >= MIN_ROWS_OF_TILES) return multiply_by_tiles(l, num_threads);
#endif
    in_parallel(smaller(num_threads, l.num_tasks), do_tasks, &l);
}

inline void multiply(const void* x, bool is_bf16, int64_t m, const Weights& weights,
                     const void* bias, void* y, char* scratch, int64_t num_threads) {
    if (m == 0 || weights.num_rows == 0) return;
    Linear l = {};
    l.weights = weights;
    l.rows = within(scratch, m, weights.num_columns);
    l.x = x;
    l.bias = bias;
    l.y = y;
    l.is_bf16 = is_bf16;
    l.num_rows = m;
    plan(l, num_threads);
    const bool is_small = m * weights.num_columns < SHARED_NUMBERS;
    in_parallel(is_small ? 1 : smaller(num_threads, m), quantise_rows, &l);
    multiply_quantised(l, num_threads);
}

struct Packing {
    const void* weight;
    bool is_bf16;
    Weights weights;
    int64_t next_panel;
};

template <class Form>
void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    const Weights& to = p.weights;
    const int64_t k = to.num_columns;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < to.num_panels()) {
        const int64_t first = panel * LANES, count = smaller(LANES, to.num_rows - first);
        uint8_t* out = (uint8_t*)to.panel(panel);
        p.is_bf16 ? Form::pack((const bf16*)p.weight + first * k, count, to, out)
                  : Form::pack((const float*)p.weight + first * k, count, to, out);
    }
}

// Packs all panels of a weight, each by `Form::pack`.
template <class Form>
void pack_all(const void* weight, bool is_bf16, const Weights& to, int64_t num_threads) {
    Packing packing = {weight, is_bf16, to, 0};
    in_parallel(num_threads, pack_panels<Form>, &packing);
}

// Looks up rows of W by `Form::unpack`. Returns false if an index is not below N.
template <class Form>
bool unpack_rows(const Weights& weights, const int64_t* indices, int64_t count, bool is_bf16,
                 void* y) {
    const int64_t k = weights.num_columns;
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= weights.num_rows) return false;
        is_bf16 ? Form::unpack(weights, indices[i], (bf16*)y + i * k)
                : Form::unpack(weights, indices[i], (float*)y + i * k);
    }
    return true;
}

}  // namespace

#endif
