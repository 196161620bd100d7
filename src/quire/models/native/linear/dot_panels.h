// Products of some rows of x by one panel of weights in 12 bits, decoded in registers.
#pragma once

#include "linear/panels.h"

namespace {

constexpr int MAX_PANEL_ROWS = 8;  // rows of x up to which memory is all that matters
// So many bytes before a cursor the cache is filled from memory.
constexpr int64_t FAR = 3072;

// Returns two numbers of a row of x, or the last one and zero.
inline uint32_t pair_at(const uint16_t* x, bool is_whole) {
    if (!is_whole) return *x;
    uint32_t out;
    memcpy(&out, x, 4);
    return out;
}

// Adds the products of a pair of columns. `x` is in the first row; those that follow are `stride`
// apart.
template <int ROWS, int COUNT>
__attribute__((always_inline)) inline void add_pair(__m512 (&sums)[ROWS][COUNT], const __m512i* w,
                                                    const uint16_t* x, int64_t stride,
                                                    bool is_whole) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        __m512bh pair = (__m512bh)_mm512_set1_epi32(int(pair_at(x + r * stride, is_whole)));
#pragma GCC unroll 4
        for (int v = 0; v < COUNT; v++)
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)w[v], pair);
    }
}

// Dense rows of x, and the place of the first row's product by a panel; those that follow are
// `stride` apart.
struct Side {
    const uint16_t* x;
    uint16_t* y;
    int64_t stride;
};

// Multiplies all rows of x by one panel.
template <int ROWS>
__attribute__((noinline)) void add_panel(const Weights& weights, int64_t i, const Side& side) {
    const int64_t k = weights.num_columns, n = weights.num_rows;
    Cursor panel = weights.panel(i, 0);
    __m512 sums[ROWS][PANEL_VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < PANEL_VECTORS; v++) {
        __m512 bias = bias_of(weights, i * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sums[r][v] = bias;
    }
    __m512i vectors[STEP_PAIRS * PANEL_VECTORS];
    for (int64_t column = 0; column < k; column += STEP) {
        panel.fetch<1>(FAR);
        panel.take(vectors);
        add_pair(sums, vectors, side.x + column, k, column + 1 < k);
        if (column + 2 < k)
            add_pair(sums, vectors + PANEL_VECTORS, side.x + column + 2, k, column + 3 < k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++)
            put(side.y + r * side.stride + v * LANES, sums[r][v], n - i * PANEL - v * LANES);
}

typedef void (*AddPanel)(const Weights&, int64_t, const Side&);

const AddPanel ADD_PANEL[MAX_PANEL_ROWS] = {add_panel<1>, add_panel<2>, add_panel<3>, add_panel<4>,
                                            add_panel<5>, add_panel<6>, add_panel<7>, add_panel<8>};

// Multiplies up to MAX_PANEL_ROWS dense rows of x by one panel after the other.
class PanelProduct {
    const Weights& weights;
    const uint16_t* x;
    int64_t num_rows;

   public:
    PanelProduct(const Weights& weights, const uint16_t* x, int64_t num_rows)
        : weights(weights), x(x), num_rows(num_rows) {}

    // Puts the first row's product to `y`, and those that follow `stride` apart.
    void put(int64_t panel, uint16_t* y, int64_t stride) const {
        ADD_PANEL[num_rows - 1](weights, panel, {x, y, stride});
    }
};

}  // namespace
