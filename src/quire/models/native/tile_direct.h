// As direct.h does it, by tiles: keys are a tile's rows where they lie in the store, so that scores
// come with their query heads side by side; only values are packed.
#pragma once

#include "direct.h"
#include "tiles.h"

#if QUIRE_HAS_TILES

namespace {

constexpr int64_t SIDE_ROWS = 8;      // of scores: a vector has those of two keys
constexpr int64_t MIN_SIDE_ROWS = 5;  // for fewer, vectors are faster
constexpr int64_t KEYS = TILE_ROWS;   // in a tile of keys
constexpr int64_t CHUNK = 32;         // bfloat16 in a row of a tile
constexpr int64_t CHUNK_PAIRS = CHUNK / 2;
constexpr int64_t SCORE_VECTORS = TILE * SIDE_ROWS / LANES;

// Every piece of a call, or none.
inline bool fits_tiles(const Call& call) {
    return call.group() / call.num_pieces() >= MIN_SIDE_ROWS && call.k_width % CHUNK == 0 &&
           call.v_width % CHUNK == 0;
}

// Tiles 0 and 1: scores; 2 and 3: sums of values; 4 and 5: keys or values; 6: queries; 7: weights.
inline void shape_for_pieces(Tiles& tiles) {
    const int64_t scores = SIDE_ROWS * 4;
    const TileShape shapes[8] = {{TILE_ROWS, scores}, {TILE_ROWS, scores}, {SIDE_ROWS, LINE},
                                 {SIDE_ROWS, LINE},   {TILE_ROWS, LINE},   {TILE_ROWS, LINE},
                                 {TILE_ROWS, scores}, {SIDE_ROWS, LINE}};
    tiles.shape(shapes, Tiles::FOR_PIECES);
}

// The row's query into its place: [pairs, SIDE_ROWS].
inline void spread_for_tiles(const uint32_t* query, int64_t depth, int64_t row, float* queries) {
    for (int64_t i = 0; i < depth; i++) memcpy(queries + i * SIDE_ROWS + row, query + i, 4);
}

// Keys where they lie, or copied where they are not as far from each other each.
struct KeyTile {
    const bf16* first;
    int64_t stride;

    KeyTile(const Rows<bf16>& keys, bf16* copies) {
        first = keys.at(0, 0);
        stride = keys.rows[1] - keys.rows[0];
        if (keys.are_even(KEYS)) return;
        for (int64_t i = 0; i < KEYS; i++)
            memcpy(copies + i * keys.width, keys.at(i, 0), size_t(keys.width) * sizeof(bf16));
        first = copies;
        stride = keys.width;
    }
};

// Two tiles of keys: scores [2 * KEYS, SIDE_ROWS], not scaled.
inline void score_by_tiles(const Rows<bf16>& keys, const float* queries, bf16* copies,
                           float* scores) {
    const KeyTile a(keys, copies), b(keys.from(KEYS), copies + KEYS * keys.width);
    settle();
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t at = 0; at < keys.width; at += CHUNK, queries += CHUNK_PAIRS * SIDE_ROWS) {
        _tile_loadd(6, queries, SIDE_ROWS * 4);
        _tile_loadd(4, a.first + at, a.stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, b.first + at, b.stride * 2);
        _tile_dpbf16ps(1, 5, 6);
    }
    _tile_stored(0, scores, SIDE_ROWS * 4);
    _tile_stored(1, scores + KEYS * SIDE_ROWS, SIDE_ROWS * 4);
    settle();
}

// Of a tile's keys, by rows: [SIDE_ROWS, TILE].
struct alignas(LINE) RowWeights {
    uint16_t of[SIDE_ROWS][TILE];
};

// Each vector has 4 keys' weights of 8 rows, one key after the other: to rows.
inline void turn(__m512i (&vectors)[8], RowWeights& to, int64_t first) {
    alignas(LINE) static constexpr uint16_t ROWS_FIRST[32] = {
        0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
        4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
    const __m512i rows_first = _mm512_load_si512(ROWS_FIRST);
    const __m512i pairs[2] = {_mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                              _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15)};
    const __m512i halves[2] = {_mm512_setr_epi64(0, 1, 2, 3, 8, 9, 10, 11),
                               _mm512_setr_epi64(4, 5, 6, 7, 12, 13, 14, 15)};
    __m512i ones[8], twos[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) vectors[i] = _mm512_permutexvar_epi16(rows_first, vectors[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        ones[i] = _mm512_unpacklo_epi64(vectors[i], vectors[i + 1]);
        ones[i + 1] = _mm512_unpackhi_epi64(vectors[i], vectors[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i++) {
        const int a = i / 4 * 4 + i % 2;
        twos[i] = _mm512_permutex2var_epi64(ones[a], pairs[i % 4 / 2], ones[a + 2]);
    }
#pragma GCC unroll 8
    for (int row = 0; row < 8; row++) {
        const int a = row % 4;
        _mm512_store_si512(to.of[row] + first,
                           _mm512_permutex2var_epi64(twos[a], halves[row / 4], twos[a + 4]));
    }
}

// Scores become weights; what was added up so far is to be multiplied by `factors` [SIDE_ROWS].
__attribute__((noinline, unused)) void weigh_by_rows(const Call& call, float* scores, Seen seen,
                                                     const Piece& piece, RowWeights& weights,
                                                     float* factors) {
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const ints rows = lanes % int(SIDE_ROWS), keys = lanes / int(SIDE_ROWS);
    floats high[2] = {splat(-3e38f), splat(-3e38f)};
    for (int64_t i = 0; i < SCORE_VECTORS; i += 2)
        for (int64_t j = 0; j < 2; j++) {
            const int first = int(i + j) * 2;
            floats own = load(scores + (i + j) * LANES) * call.scale;
            if (call.softcap != 0) own = tangent(own / call.softcap) * call.softcap;
            if (first < seen.first || first + 2 > seen.end)
                own = choose((keys + first >= int(seen.first)) & (keys + first < int(seen.end)),
                             own, splat(-INFINITE));
            store(scores + (i + j) * LANES, own);
            high[j] = most(own, high[j]);
        }
    const ints other = lanes ^ int(SIDE_ROWS);
    const __mmask16 mask = __mmask16((1u << 2 * piece.num_rows) - 1);
    const floats before = (floats)_mm512_maskz_loadu_ps(mask, piece.running);
    const floats old_top = permute(before, rows * 2), old_total = permute(before, rows * 2 + 1);
    const floats highest = most(high[0], high[1]);
    const floats top = most(most(highest, permute(highest, other)), old_top);
    const floats origin = top * TO_POWER;
    floats sums[2] = {};
    for (int64_t first = 0; first < TILE; first += CHUNK) {
        __m512i vectors[8];
        const float* own = scores + first * SIDE_ROWS;
#pragma GCC unroll 8
        for (int64_t i = 0; i < 8; i++) {
            const floats a = power(load(own + 2 * i * LANES) * TO_POWER - origin, Dot());
            const floats b = power(load(own + (2 * i + 1) * LANES) * TO_POWER - origin, Dot());
            sums[0] += a;
            sums[1] += b;
            vectors[i] = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
        }
        turn(vectors, weights, first);
    }
    const floats factor = power((old_top - top) * TO_POWER, Fma());
    const floats both = sums[0] + sums[1];
    const floats total = old_total * factor + both + permute(both, other);
    _mm256_storeu_ps(factors, _mm512_castps512_ps256((__m512)factor));
    const __m512i pairs = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    _mm512_mask_storeu_ps(piece.running, mask,
                          _mm512_permutex2var_ps((__m512)top, pairs, (__m512)total));
}

// `packed`: the values of a tile, [TILE / 2, stride] pairs of keys.
inline void add_values_by_tiles(const RowWeights& weights, const uint32_t* packed,
                                const float* factors, const Piece& piece) {
    alignas(LINE) float added[SIDE_ROWS][CHUNK];
    settle();
    for (int64_t at = 0; at < piece.stride; at += CHUNK) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t key = 0; key < TILE; key += CHUNK) {
            const uint32_t* values = packed + key / 2 * piece.stride + at;
            _tile_loadd(7, weights.of[0] + key, TILE * 2);
            _tile_loadd(4, values, piece.stride * 4);
            _tile_dpbf16ps(2, 7, 4);
            _tile_loadd(5, values + LANES, piece.stride * 4);
            _tile_dpbf16ps(3, 7, 5);
        }
        _tile_stored(2, added[0], CHUNK * 4);
        _tile_stored(3, added[0] + LANES, CHUNK * 4);
        settle();
        for (int64_t row = 0; row < piece.num_rows; row++)
            for (int64_t i = 0; i < CHUNK; i += LANES) {
                float* place = piece.sums + row * piece.stride + at + i;
                store(place, load(place) * factors[row] + load(added[row] + i));
            }
    }
}

// `packed`, for the tile's values, serves all its pieces.
inline void attend_piece_by_tiles(const Call& call, const DirectTile<bf16>& tile,
                                  const Piece& piece, const uint32_t* packed, bf16* copies,
                                  int64_t fetched_at_once) {
    alignas(LINE) float scores[TILE * SIDE_ROWS], factors[SIDE_ROWS];
    RowWeights weights;
    for (int64_t key = 0; key < TILE; key += 2 * KEYS) {
        tile.keys.ahead->fetch_rows(fetched_at_once);
        score_by_tiles(tile.keys.from(key), piece.queries, copies, scores + key * SIDE_ROWS);
    }
    tile.values.ahead->fetch_rows(fetched_at_once);
    weigh_by_rows(call, scores, tile.seen, piece, weights, factors);
    tile.values.ahead->fetch_rows(fetched_at_once);
    add_values_by_tiles(weights, packed, factors, piece);
}

}  // namespace

#endif
