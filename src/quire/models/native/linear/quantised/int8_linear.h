// Linear layers of quantised rows by weights kept as bytes: by tiles where they pay, else by dot
// products in vector registers.
#pragma once

#include "linear/quantised/int8_products.h"
#if QUIRE_HAS_TILES
#include "linear/quantised/tile_int8.h"
#endif

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

template <class Sink>
void multiply(typename Sink::Job& job, int64_t num_threads) {
#if QUIRE_HAS_TILES
    if (job.linear.num_rows >= MIN_ROWS_OF_TILES)
        return multiply_by_tiles<Sink>(job, num_threads);
#endif
    in_parallel(smaller(num_threads, job.linear.num_tasks), do_tasks<Sink>, &job);
}

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

// Fills in the rest of `l`, and quantises the rows of x.
inline void begin(Linear& l, const Weights& weights, char* scratch, int64_t num_threads) {
    l.weights = weights;
    l.rows = within(scratch, l.num_rows, weights.num_columns);
    plan(l, num_threads);
    bool is_small = l.num_rows * weights.num_columns < SHARED_NUMBERS;
    in_parallel(is_small ? 1 : smaller(num_threads, l.num_rows), quantise_rows, &l);
}

}  // namespace

#endif
