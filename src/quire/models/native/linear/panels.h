// A weight in 12 bits as products by its panels take it, and such a product.
#pragma once

#include "linear/compressed_bf16.h"

namespace {

constexpr int PANEL_VECTORS = PANEL / LANES;

struct Weights {
    const uint8_t* packed;
    const uint16_t* bias;  // null if there is none
    int64_t num_rows;      // N
    int64_t num_columns;   // K

    int64_t num_pairs() const { return ratio_up(num_columns, 2); }
    int64_t num_steps() const { return ratio_up(num_columns, STEP); }
    int64_t num_panels() const { return ratio_up(num_rows, PANEL); }
    // The last panel stands in for one beyond it, whose sums are dropped.
    Cursor panel(int64_t i, int64_t first_step) const {
        return Cursor(packed, smaller(i, num_panels() - 1), first_step);
    }
};

// y = x W^T + bias, with x [num_rows, K] and y [num_rows, N] dense. With couples of panels y is
// [num_rows, N / 2]: the first panel of a couple has gates, the one that many panels on the values
// that they multiply.
struct LinearProduct {
    Weights weights;
    const uint16_t* x;
    uint16_t* y;
    int64_t num_rows;  // M
    void* scratch = nullptr;
    int64_t num_couples = 0, act = 0;

    int64_t width() const { return num_couples ? num_couples * PANEL : weights.num_rows; }
};

inline __mmask16 first_lanes(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? __mmask16((1 << count) - 1) : 0;
}

inline __m512 bias_of(const Weights& weights, int64_t row) {
    if (!weights.bias) return _mm512_setzero_ps();
    const __mmask16 is_there = first_lanes(weights.num_rows - row);
    __m256i bits = _mm256_maskz_loadu_epi16(is_there, weights.bias + row);
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}

inline void put(uint16_t* place, __m512 sums, int64_t count) {
    _mm256_mask_storeu_epi16(place, first_lanes(count), (__m256i)_mm512_cvtneps_pbh(sums));
}

}  // namespace
