// The product of attention by tiles: C[rows, columns] += A[rows, depth] B[depth, columns] over
// pairs of bfloat16, packed as for Dot.
#pragma once

#include "common/products.h"
#include "common/tiles.h"

#if QUIRE_HAS_TILES

namespace {

struct TileDot : Dot {
    static constexpr int MAX_ROWS = int(BLOCK_ROWS);
    static constexpr bool IS_SHAPED = true;
    static constexpr int64_t DEPTH = 16, COLUMNS = 32;
    typedef Tiles Registers;
};

template <bool HAS_LOWER>
void multiply_block(const Product& p, int64_t column) {
    const uint32_t *a = p.a, *b = p.b + column;
    settle();
    p.is_sum ? load_sums<HAS_LOWER>(p.c + column, p.c_stride) : clear_sums();
    for (int64_t k = 0; k < p.depth; k += TileDot::DEPTH) {
        _tile_loadd(6, b, p.b_stride * 4);
        _tile_loadd(4, a, p.a_stride * 4);
        _tile_loadd(7, b + 16, p.b_stride * 4);
        _tile_dpbf16ps(0, 4, 6);
        if (HAS_LOWER) _tile_loadd(5, a + TILE_ROWS * p.a_stride, p.a_stride * 4);
        _tile_dpbf16ps(1, 4, 7);
        if (HAS_LOWER) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        a += TileDot::DEPTH;
        b += TileDot::DEPTH * p.b_stride;
    }
    store_sums<HAS_LOWER>(p.c + column, p.c_stride);
}

// Multiplies up to MAX_ROWS rows, for which `tiles` are shaped; depth and `columns` are multiples
// of DEPTH and COLUMNS.
inline void multiply(const Product& p, int64_t rows, int64_t columns, Tiles& tiles) {
    tiles.shape(rows);
    for (int64_t at = 0; at < columns; at += TileDot::COLUMNS)
        rows > TILE_ROWS ? multiply_block<true>(p, at) : multiply_block<false>(p, at);
}

inline void multiply_split(const Product& p, int64_t rows, int64_t columns, int64_t, Tiles& tiles) {
    multiply(p, rows, columns, tiles);
}

}  // namespace

#endif
