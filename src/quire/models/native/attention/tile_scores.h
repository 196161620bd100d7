// Scores of few rows by tiles: keys are a tile's rows where they lie in the store, queries the
// columns of another. They have the bits of the product of packed keys, whose sums are of the same
// numbers in the same order: with 32 elements a step, even and odd ones apart.
#pragma once

#include "attention/tile_products.h"
#include "common/packing.h"

#if QUIRE_HAS_TILES

namespace {

constexpr int64_t CHUNK = 32;         // bfloat16 in a row of a tile
constexpr int64_t GATHERED_ROWS = 4;  // so few are gathered faster than all 16 are transposed

// Up to TILE_ROWS queries of one K/V head, [depth, num_rows] pairs, zeros from `width` elements on;
// `depth` is a multiple of CHUNK / 2.
struct FewQueries {
    const uint32_t* pairs;
    int64_t depth, width, num_rows;
};

// The keys of a tile, where they lie if they are equally far from each other and end with a chunk,
// else copied.
struct KeyTile {
    const bf16* first;
    int64_t stride;

    KeyTile(const bf16* const* keys, const FewQueries& queries, bf16* copies) {
        const int64_t width = queries.width, padded = 2 * queries.depth;
        first = keys[0];
        stride = keys[1] - keys[0];
        bool is_even = width == padded;
        for (int64_t i = 2; i < TILE_ROWS; i++) is_even &= keys[i] - keys[i - 1] == stride;
        if (is_even) return;
        for (int64_t at = 0; at < padded; at += CHUNK)
            for (int64_t i = 0; i < TILE_ROWS; i++)
                _mm512_storeu_si512(copies + i * padded + at,
                                    load_halves(keys[i] + at, smaller(CHUNK, width - at)));
        first = copies;
        stride = padded;
    }
};

// Turns scores [keys, TILE_ROWS] of `num_keys` to products [num_rows, TILE].
inline void turn_scores(const float* scores, int64_t num_keys, int64_t num_rows, float* products) {
    const __m512i places = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    for (int64_t key = 0; key < num_keys; key += TILE_ROWS, scores += TILE_ROWS * TILE_ROWS) {
        if (num_rows <= GATHERED_ROWS) {
            for (int64_t row = 0; row < num_rows; row++)
                _mm512_storeu_ps(products + row * TILE + key,
                                 _mm512_i32gather_ps(places, scores + row, 4));
            continue;
        }
        ints block[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) memcpy(&block[i], scores + i * TILE_ROWS, sizeof(ints));
        transpose_from<1>(block);
        for (int64_t row = 0; row < num_rows; row++)
            memcpy(products + row * TILE + key, &block[row], sizeof(ints));
    }
}

// Scores the first `num_keys`, a multiple of 2 * TILE_ROWS, into products [num_rows, TILE], and
// calls `fetch` now and then. `copies` has space for two tiles' keys.
template <class Fetch>
void score_in_place(const bf16* const* keys, int64_t num_keys, const FewQueries& queries,
                    bf16* copies, Tiles& tiles, Fetch fetch, float* products) {
    alignas(LINE) float scores[TILE * TILE_ROWS];
    const int64_t padded = 2 * queries.depth, num_rows = queries.num_rows;
    tiles.shape(num_rows);
    for (int64_t key = 0; key < num_keys; key += 2 * TILE_ROWS) {
        const KeyTile a(keys + key, queries, copies);
        const KeyTile b(keys + key + TILE_ROWS, queries, copies + TILE_ROWS * padded);
        const uint32_t* pairs = queries.pairs;
        settle();
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t at = 0; at < padded; at += CHUNK, pairs += CHUNK / 2 * num_rows) {
            _tile_loadd(5, pairs, num_rows * 4);
            fetch();
            _tile_loadd(6, a.first + at, a.stride * 2);
            _tile_dpbf16ps(2, 6, 5);
            fetch();
            _tile_loadd(7, b.first + at, b.stride * 2);
            _tile_dpbf16ps(3, 7, 5);
        }
        _tile_stored(2, scores + key * TILE_ROWS, LINE);
        _tile_stored(3, scores + (key + TILE_ROWS) * TILE_ROWS, LINE);
        settle();
    }
    turn_scores(scores, num_keys, num_rows, products);
}

}  // namespace

#endif
