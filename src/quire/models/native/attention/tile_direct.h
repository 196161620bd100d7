// The attention of direct.h by tiles: keys and values are a tile's rows where they lie in the
// store. Scores come with their query heads side by side, sums of values with even and odd elements
// apart.
#pragma once

#include "attention/direct.h"
#include "common/tiles.h"

#if QUIRE_HAS_TILES

namespace {

constexpr int64_t SIDE_ROWS = 8;      // rows of scores: a vector has those of two keys
constexpr int64_t MIN_SIDE_ROWS = 5;  // vectors are faster for fewer rows
constexpr int64_t KEYS = TILE_ROWS;   // keys in a tile
constexpr int64_t CHUNK = 32;         // bfloat16 in a row of a tile
constexpr int64_t CHUNK_PAIRS = CHUNK / 2;
constexpr int64_t SCORE_VECTORS = TILE * SIDE_ROWS / LANES;
constexpr int64_t FETCHES = 64;       // the least fetches of a piece

// Returns whether the pieces of a call fit tiles: all of them do, or none.
inline bool fits_tiles(const Call& call) {
    return call.group() / call.num_pieces() >= MIN_SIDE_ROWS && call.head_size % CHUNK == 0 &&
           call.v_head_size % CHUNK == 0;
}

// Shapes tiles 0 and 1 for scores, 2 and 3 for sums of values, 4 and 5 for keys or values, 6 for
// queries and 7 for weights.
inline void shape_for_pieces(Tiles& tiles) {
    const int64_t scores = SIDE_ROWS * 4;
    const TileShape shapes[8] = {{TILE_ROWS, scores}, {TILE_ROWS, scores}, {SIDE_ROWS, LINE},
                                 {SIDE_ROWS, LINE},   {TILE_ROWS, LINE},   {TILE_ROWS, LINE},
                                 {TILE_ROWS, scores}, {SIDE_ROWS, LINE}};
    tiles.shape(shapes, Tiles::FOR_PIECES);
}

// Puts the row's query into its place in [pairs, SIDE_ROWS].
inline void spread_for_tiles(const uint32_t* query, int64_t depth, int64_t row, float* queries) {
    for (int64_t i = 0; i < depth; i++) memcpy(queries + i * SIDE_ROWS + row, query + i, 4);
}

// Fetches the lines of the tile after this one, its keys' before its values', some at a time and as
// evenly as can be: a core waits for few lines at once, and computes meanwhile only if it need not
// wait to ask for one.
struct LinesAhead {
    Ahead &keys, &values;
    int64_t num_bytes;

    __attribute__((always_inline)) inline void fetch() {
        (keys.num_rows ? keys : values).fetch(num_bytes);
    }
};

// A tile of keys or values, where they lie if they are equally far from each other, else copied.
struct RowTile {
    const bf16* first;
    int64_t stride;

    RowTile(const Rows<bf16>& rows, bf16* copies) {
        first = rows.at(0, 0);
        stride = rows.rows[1] - rows.rows[0];
        if (rows.are_even(KEYS)) return;
        for (int64_t i = 0; i < KEYS; i++)
            memcpy(copies + i * rows.width, rows.at(i, 0), size_t(rows.width) * sizeof(bf16));
        first = copies;
        stride = rows.width;
    }
};

// Computes the scores [2 * KEYS, SIDE_ROWS] of two tiles of keys, not scaled.
inline void score_by_tiles(const Rows<bf16>& keys, const float* queries, bf16* copies,
                           LinesAhead& ahead, float* scores) {
    const RowTile a(keys, copies), b(keys.from(KEYS), copies + KEYS * keys.width);
    settle();
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t at = 0; at < keys.width; at += CHUNK, queries += CHUNK_PAIRS * SIDE_ROWS) {
        _tile_loadd(6, queries, SIDE_ROWS * 4);
        ahead.fetch();
        _tile_loadd(4, a.first + at, a.stride * 2);
        _tile_dpbf16ps(0, 4, 6);
        ahead.fetch();
        _tile_loadd(5, b.first + at, b.stride * 2);
        _tile_dpbf16ps(1, 5, 6);
    }
    _tile_stored(0, scores, SIDE_ROWS * 4);
    _tile_stored(1, scores + KEYS * SIDE_ROWS, SIDE_ROWS * 4);
    settle();
}

// Returns 2^x within 3e-7 of it, and exactly 1 at 0, for x <= 127: a minimax polynomial between
// whole powers.
inline floats power(floats x, Fma) {
    floats rest = (floats)_mm512_reduce_ps((__m512)x, 0x09);  // x - floor(x)
    floats y = rest * 1.877576592e-3f + 8.989340632e-3f;
    y = y * rest + 5.582631723e-2f;
    y = y * rest + 2.401536175e-1f;
    y = y * rest + 6.931530731e-1f;
    y = y * rest + 1.0f;
    return (floats)_mm512_scalef_ps((__m512)y, (__m512)x);
}

// Returns 2^x within 1e-4, for weights that become bfloat16, and 0 below 2^-126.
inline floats power(floats x, Dot) {
    floats shifted = x + TO_INTEGER;
    floats rest = x - (shifted - TO_INTEGER);
    floats y = rest * 5.500895124e-2f + 2.422110097e-1f;
    y = y * rest + 6.932829305e-1f;
    y = y * rest + 1.0f;
    __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_GE_OQ);
    return (floats)_mm512_maskz_add_epi32(is_normal, (__m512i)y, _mm512_slli_epi32((__m512i)shifted, 23));
}

// The weights of a tile's keys, by rows, in bfloat16: those that the odd elements of values are
// multiplied by, with zeros for the even ones beside them, and the other way round.
struct alignas(LINE) RowWeights {
    uint32_t odd[SIDE_ROWS][TILE], even[SIDE_ROWS][TILE];
};

// Turns to rows the vectors of 16 keys' weights of 8 rows, each of which has those of a key and of
// the fourth after it.
inline void turn(const __m512 (&vectors)[8], RowWeights& to, int64_t first) {
    __m512d halves[2][4];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m512* own = vectors + 4 * i;
        const __m512d a = (__m512d)_mm512_unpacklo_ps(own[0], own[1]);
        const __m512d b = (__m512d)_mm512_unpackhi_ps(own[0], own[1]);
        const __m512d c = (__m512d)_mm512_unpacklo_ps(own[2], own[3]);
        const __m512d d = (__m512d)_mm512_unpackhi_ps(own[2], own[3]);
        halves[i][0] = _mm512_unpacklo_pd(a, c);
        halves[i][1] = _mm512_unpackhi_pd(a, c);
        halves[i][2] = _mm512_unpacklo_pd(b, d);
        halves[i][3] = _mm512_unpackhi_pd(b, d);
    }
    const auto put = [&](int64_t row, __m512d weights) __attribute__((always_inline)) {
        const __m512i bits = _mm512_add_epi32((__m512i)weights, _mm512_set1_epi32(0x8000));
        _mm512_store_si512(to.even[row] + first, _mm512_srli_epi32(bits, 16));
        _mm512_store_si512(to.odd[row] + first,
                           _mm512_and_si512(bits, _mm512_set1_epi32(int(0xffff0000))));
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        put(i, _mm512_shuffle_f64x2(halves[0][i], halves[1][i], 0x88));
        put(i + 4, _mm512_shuffle_f64x2(halves[0][i], halves[1][i], 0xdd));
    }
}

// Makes weights of scores. What was added up so far is to be multiplied by `factors` [SIDE_ROWS].
__attribute__((noinline, unused)) void weigh_by_rows(const Call& call, float* scores, Seen seen,
                                                     const Piece& piece, LinesAhead& ahead,
                                                     RowWeights& weights, float* factors) {
    const ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const ints rows = lanes % int(SIDE_ROWS), keys = lanes / int(SIDE_ROWS);
    floats high[2] = {splat(-3e38f), splat(-3e38f)};
    for (int64_t i = 0; i < SCORE_VECTORS; i += 2) {
        ahead.fetch();
        for (int64_t j = 0; j < 2; j++) {
            const int first = int(i + j) * 2;
            floats own = load(scores + (i + j) * LANES) * call.logit_scale;
            if (call.logit_cap != 0) own = tangent(own / call.logit_cap) * call.logit_cap;
            if (first < seen.first || first + 2 > seen.end)
                own = choose((keys + first >= int(seen.first)) & (keys + first < int(seen.end)),
                             own, splat(-INFINITE));
            store(scores + (i + j) * LANES, own);
            high[j] = most(own, high[j]);
        }
    }
    const ints other = lanes ^ int(SIDE_ROWS);
    const __mmask16 mask = __mmask16((1u << 2 * piece.num_rows) - 1);
    const floats before = (floats)_mm512_maskz_loadu_ps(mask, piece.running);
    const floats old_top = permute(before, rows * 2), old_total = permute(before, rows * 2 + 1);
    const floats highest = most(high[0], high[1]);
    const floats top = most(most(highest, permute(highest, other)), old_top);
    const floats origin = top * TO_POWER;
    floats sums[2] = {};
    for (int64_t first = 0; first < TILE; first += KEYS) {
        __m512 vectors[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (i % 2 == 0) ahead.fetch();
            const float* own = scores + (first + i / 4 * 8 + i % 4) * SIDE_ROWS;
            const __m512 both = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_load_ps(own)),
                                                   _mm256_load_ps(own + 4 * SIDE_ROWS), 1);
            const floats weight = power((floats)both * TO_POWER - origin, Dot());
            sums[i % 2] += weight;
            vectors[i] = (__m512)weight;
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

// Adds the weighted values to the sums. In each CHUNK of sums the even ones come first.
inline void add_values_by_tiles(const RowWeights& weights, const Rows<bf16>& values, bf16* copies,
                                const float* factors, const Piece& piece, LinesAhead& ahead) {
    alignas(LINE) float added[SIDE_ROWS][CHUNK];
    const RowTile tiles[TILE / KEYS] = {{values, copies},
                                        {values.from(KEYS), copies + KEYS * values.width},
                                        {values.from(2 * KEYS), copies + 2 * KEYS * values.width},
                                        {values.from(3 * KEYS), copies + 3 * KEYS * values.width}};
    settle();
    for (int64_t at = 0; at < piece.stride; at += CHUNK) {
        _tile_zero(2);
        _tile_zero(3);
#pragma GCC unroll 4
        for (int i = 0; i < TILE / KEYS; i++) {
            ahead.fetch();
            _tile_loadd(4, tiles[i].first + at, tiles[i].stride * 2);
            ahead.fetch();
            _tile_loadd(7, weights.even[0] + i * KEYS, TILE * 4);
            _tile_dpbf16ps(2, 7, 4);
            ahead.fetch();
            _tile_loadd(7, weights.odd[0] + i * KEYS, TILE * 4);
            _tile_dpbf16ps(3, 7, 4);
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

// Brings the sums of `count` elements back into their order.
inline void straighten(float* sums, int64_t count) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t at = 0; at < count; at += CHUNK) {
        const __m512 even = (__m512)load(sums + at), odd = (__m512)load(sums + at + LANES);
        store(sums + at, (floats)_mm512_permutex2var_ps(even, first, odd));
        store(sums + at + LANES, (floats)_mm512_permutex2var_ps(even, second, odd));
    }
}

// Attends with a piece's rows to a tile. `key_copies` and `value_copies` have space for a tile's
// keys and values; each piece has to fetch `num_lines` ahead.
inline void attend_piece_by_tiles(const Call& call, const DirectTile<bf16>& tile,
                                  const Piece& piece, bf16* key_copies, bf16* value_copies,
                                  int64_t num_lines) {
    alignas(LINE) float scores[TILE * SIDE_ROWS], factors[SIDE_ROWS];
    RowWeights weights;
    LinesAhead ahead{*tile.keys.ahead, *tile.values.ahead, ratio_up(num_lines, FETCHES) * LINE};
    for (int64_t key = 0; key < TILE; key += 2 * KEYS)
        score_by_tiles(tile.keys.from(key), piece.queries, key_copies, ahead,
                       scores + key * SIDE_ROWS);
    weigh_by_rows(call, scores, tile.seen, piece, ahead, weights, factors);
    add_values_by_tiles(weights, tile.values, value_copies, factors, piece, ahead);
}

}  // namespace

#endif
