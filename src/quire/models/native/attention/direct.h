// Attention of the few query heads that share a K/V head, over K and V where they lie. Nothing is
// packed, since bandwidth is what a decode has least of. Values are multiplied by pairs of keys,
// which are interleaved as they are read.
#pragma once

#include "attention/lanes.h"

#if QUIRE_HAS_BF16_DOT

namespace {

constexpr int STEP_KEYS = 4;  // keys whose values are added at a time

// The rows of a piece, at most MOST_SLOTS query heads of one K/V head and one position.
struct Piece {
    float* queries;  // [parts of a key, LANES]
    Running* running;
    float* sums;  // [num_rows, stride], a multiple of LANES
    int64_t num_rows, stride;
};

// Puts the row's query into its slots, with zeros after it up to a vector.
template <int SLOTS>
inline void spread(const uint32_t* query, int64_t depth, int64_t row, float* queries) {
    constexpr int64_t SHARE = LANES / SLOTS;
    for (int64_t i = 0; i < depth; i += SHARE)
        memcpy(queries + i * SLOTS + row * SHARE, query + i, SHARE * 4);
}

inline void spread(const uint32_t* query, int64_t depth, int64_t row, const Piece& piece) {
    switch (slots_of(piece.num_rows)) {
        case 1: return spread<1>(query, depth, row, piece.queries);
        case 2: return spread<2>(query, depth, row, piece.queries);
        case 4: return spread<4>(query, depth, row, piece.queries);
        default: return spread<8>(query, depth, row, piece.queries);
    }
}

// Fetches what lies in some rows line by line, in its order, while something else is computed: all
// at once the lines would wait for each other.
struct Ahead {
    const char* const* rows;
    int64_t num_rows, row_bytes;
    int64_t at;  // the next byte of the first row

    void fetch() {
        if (num_rows == 0) return;
        __builtin_prefetch(*rows + at, 0, 2);
        at += 64;
        if (at < row_bytes) return;
        at = 0;
        rows++;
        num_rows--;
    }

    // Fetches some lines of a row.
    void fetch(int64_t num_bytes) {
        if (num_rows == 0) return;
        const int64_t end = smaller(at + num_bytes, row_bytes);
        for (; at < end; at += 64) __builtin_prefetch(*rows + at, 0, 2);
        if (at < row_bytes) return;
        at = 0;
        rows++;
        num_rows--;
    }

    void fetch_rest() {
        while (num_rows) fetch();
    }
};

// `width` elements of every row of a tile, from `first` on, and what to fetch meanwhile, a line for
// every line read.
template <class Stored>
struct Rows {
    const Stored* const* rows;
    int64_t first, width;
    Ahead* ahead;

    Rows from(int64_t row) const { return {rows + row, first, width, ahead}; }
    const Stored* at(int64_t row, int64_t element) const { return rows[row] + first + element; }

    // Returns whether each of `count` rows is as far from the one before it.
    bool are_even(int64_t count) const {
        bool out = true;
        for (int64_t i = 2; i < count; i++) out &= rows[i] - rows[i - 1] == rows[1] - rows[0];
        return out;
    }
};

// Scores LANES keys with all rows, scaled, as SLOTS vectors.
template <class Way, int SLOTS, class Stored>
__attribute__((noinline)) void score(Rows<Stored> keys, const float* queries, float scale,
                                     float* scores) {
    constexpr int64_t PART = 64 / SLOTS / int64_t(sizeof(Stored));
    constexpr int SIDE = 2;  // keys side by side: a sum waits for its last product
    floats sums[LANES] = {};
    Ahead ahead = *keys.ahead;
    int64_t at = 0;
    for (; at + SLOTS * PART <= keys.width; at += SLOTS * PART, queries += SLOTS * LANES) {
        floats query[SLOTS];
#pragma GCC unroll 8
        for (int j = 0; j < SLOTS; j++) query[j] = load(queries + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += SIDE) {
#pragma GCC unroll 4
            for (int k = 0; k < SIDE; k++) ahead.fetch();
#pragma GCC unroll 8
            for (int j = 0; j < SLOTS; j++)
#pragma GCC unroll 4
                for (int k = i; k < i + SIDE; k++)
                    sums[k] = dot(sums[k], query[j],
                                  repeat<SLOTS>((const char*)keys.at(k, at + j * PART)), Way());
        }
    }
    for (; at + PART <= keys.width; at += PART, queries += LANES) {
        floats query = load(queries);
#pragma GCC unroll 16
        for (int i = 0; i < LANES / SLOTS; i++) ahead.fetch();
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            sums[i] = dot(sums[i], query, repeat<SLOTS>((const char*)keys.at(i, at)), Way());
    }
    if (at < keys.width) {
        __mmask32 mask = (1u << (keys.width - at) * int64_t(sizeof(Stored)) / 2) - 1;
        floats query = load(queries);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            ahead.fetch();
            __m512i part = _mm512_maskz_loadu_epi16(mask, keys.at(i, at));
            sums[i] = dot(sums[i], query, repeat<SLOTS>(part), Way());
        }
    }
    *keys.ahead = ahead;
    reduce<SLOTS>(sums);
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++) store(scores + i * LANES, sums[i] * scale);
}

constexpr int SIDE = 8;

// Does the same as `score` of SLOTS = 8, SIDE keys side by side, so that more sums need not wait
// for each other: with fewer rows memory is waited for, which gives one key after the other faster.
// Each half of the keys is even, and their width a multiple of SIDE parts.
template <class Way, class Stored>
__attribute__((noinline)) void score_even(Rows<Stored> keys, const float* queries, float scale,
                                          float* scores) {
    constexpr int SLOTS = 8;
    constexpr int64_t PART = 64 / SLOTS / int64_t(sizeof(Stored));
    floats sums[LANES] = {};
    Ahead ahead = *keys.ahead;
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += SIDE) {
        const Stored* from = keys.at(i, 0);
        const int64_t stride = keys.rows[i + 1] - keys.rows[i];
        const float* query = queries;
#pragma GCC unroll 1
        for (int64_t at = 0; at < keys.width; at += SIDE * PART)
#pragma GCC unroll 8
            for (int j = 0; j < SIDE; j++, from += PART, query += LANES) {
                const floats part = load(query);
                ahead.fetch();
#pragma GCC unroll 8
                for (int k = 0; k < SIDE; k++)
                    sums[i + k] = dot(sums[i + k], part,
                                      repeat<SLOTS>((const char*)(from + k * stride)), Way());
            }
    }
    *keys.ahead = ahead;
    reduce<SLOTS>(sums);
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++) store(scores + i * LANES, sums[i] * scale);
}

template <int SLOTS>
inline void put(uint32_t* place, const floats (&weights)[2], Fma) {
    store((float*)place, weights[0]);
    store((float*)place + LANES, weights[1]);
}

template <int SLOTS>
inline void put(uint32_t* place, const floats (&weights)[2], Dot) {
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)weights[1], (__m512)weights[0]);
    if (SLOTS == 8)  // a row's two keys beside each other
        both = _mm512_shuffle_epi8(
            both, _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11,
                                                       14, 15)));
    _mm512_storeu_si512(place, both);
}

// Makes weights of the scores of all the vectors that hold the first `seen.end` keys. What was
// added up so far is to be multiplied by `factors`. Every row sees a key.
template <class Way, int SLOTS>
__attribute__((noinline)) void weigh_all(float* scores, Seen seen, float softcap,
                                         const Piece& piece, uint32_t* weights, float* factors) {
    typedef Lanes<SLOTS> L;
    int64_t count = round_up((seen.end + L::KEYS - 1) / L::KEYS, 2);
    if (softcap != 0)
        for (int64_t i = 0; i < count; i++)
            store(scores + i * LANES, tangent(load(scores + i * LANES) / softcap) * softcap);
    static constexpr Table KEYS = tabulate(L::key), ROWS = tabulate(L::row),
                           HOMES = tabulate(L::home), PAIRS = tabulate([](int lane) {
                               return L::home(lane / 2) + lane % 2 * LANES;
                           });
    const ints own_keys = KEYS, own_rows = ROWS;
    for (int64_t i = 0; i < count; i++) {
        int64_t key = i * L::KEYS;
        if (key >= seen.first && key + L::KEYS <= seen.end) continue;
        ints keys = own_keys + int(key);
        store(scores + i * LANES, choose((keys >= int(seen.first)) & (keys < int(seen.end)),
                                         load(scores + i * LANES), splat(-INFINITE)));
    }
    floats high[2] = {splat(-3e38f), splat(-3e38f)};
    for (int64_t i = 0; i < count; i += 2)
        for (int j = 0; j < 2; j++) high[j] = most(load(scores + (i + j) * LANES), high[j]);
    __mmask16 rows_mask = __mmask16((1u << 2 * piece.num_rows) - 1);
    floats before = (floats)_mm512_maskz_loadu_ps(rows_mask, piece.running);
    floats old_top = permute(before, own_rows * 2), old_total = permute(before, own_rows * 2 + 1);
    floats top = most(combine<SLOTS, 1>(most(high[0], high[1]), most), old_top);
    floats origin = top * TO_POWER, sums[2] = {};
    for (int64_t i = 0; i < count; i += 2) {
        floats each[2];
        for (int j = 0; j < 2; j++) {
            each[j] = power(load(scores + (i + j) * LANES) * TO_POWER - origin, Way());
            sums[j] += each[j];
        }
        put<SLOTS>(weights + i * LANES / Way::PER_ELEMENT, each, Way());
    }
    auto add = [](floats a, floats b) { return a + b; };
    floats factor = power((old_top - top) * TO_POWER, Fma());
    floats total = old_total * factor + combine<SLOTS, 1>(sums[0] + sums[1], add);
    store(factors, permute(factor, HOMES));
    _mm512_mask_storeu_ps(
        piece.running, rows_mask,
        _mm512_permutex2var_ps((__m512)top, (__m512i)ints(PAIRS), (__m512)total));
}

struct Weighed {
    const uint32_t* weights;
    const float* factors;
    int64_t num_keys;  // a multiple of STEP_KEYS
};

// Adds VECTORS vectors of the values of STEP_KEYS keys, from element `at` on, times the rows'
// weights.
template <int ROWS, int VECTORS, int SETS>
inline void add_step(floats (&sums)[SETS][ROWS][VECTORS], Rows<float> values, int64_t at,
                     const uint32_t* weights, Ahead& ahead) {
    typedef Lanes<slots_of(ROWS)> L;
#pragma GCC unroll 4
    for (int key = 0; key < STEP_KEYS; key++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            int64_t from = at + j * LANES, left = values.width - from;
            __mmask16 mask = left >= LANES ? 0xffff : __mmask16((1u << larger(left, 0)) - 1);
            ahead.fetch();
            floats value = (floats)_mm512_maskz_loadu_ps(mask, values.at(key, from));
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) {
                float weight;
                memcpy(&weight, weights + L::place(i, key, Fma()), 4);
                floats& sum = sums[key % SETS][i][j];
                sum = sum + value * weight;
            }
        }
}

template <int ROWS, int VECTORS, int SETS>
inline void add_step(floats (&sums)[SETS][ROWS][VECTORS], Rows<bf16> values, int64_t at,
                     const uint32_t* weights, Ahead& ahead) {
    typedef Lanes<slots_of(ROWS)> L;
    const __m512i lows = _mm512_load_si512(INTERLEAVE);
    const __m512i highs = _mm512_add_epi16(lows, _mm512_set1_epi16(LANES));
#pragma GCC unroll 4
    for (int key = 0; key < STEP_KEYS; key += 2)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j += 2) {
            int64_t from = at + j * LANES, left = smaller(values.width - from, 2 * LANES);
            ahead.fetch();
            ahead.fetch();
            __m512i a = load_halves(values.at(key, from), left);
            __m512i b = load_halves(values.at(key + 1, from), left);
            floats low = (floats)_mm512_permutex2var_epi16(a, lows, b);
            floats high = (floats)_mm512_permutex2var_epi16(a, highs, b);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) {
                floats weight = (floats)_mm512_set1_epi32(int(weights[L::place(i, key, Dot())]));
                floats(&sum)[VECTORS] = sums[key / 2 % SETS][i];
                sum[j] = dot(sum[j], low, weight, Dot());
                if (j + 1 < VECTORS) sum[j + 1] = dot(sum[j + 1], high, weight, Dot());
            }
        }
}

template <class Way, int ROWS, int VECTORS, class Stored>
__attribute__((noinline)) void add_columns(Rows<Stored> values, int64_t at,
                                           const Weighed& weighed, const Piece& piece) {
    // Few sums would wait for each other.
    constexpr int SETS = ROWS * VECTORS <= 8 ? 2 : 1;
    constexpr int SLOTS = slots_of(ROWS);
    floats sums[SETS][ROWS][VECTORS] = {};
    float* place = piece.sums + at;
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++)
            sums[0][i][j] = load(place + i * piece.stride + j * LANES) * weighed.factors[i];
    const uint32_t* weights = weighed.weights;
    Ahead ahead = *values.ahead;
    for (int64_t key = 0; key < weighed.num_keys; key += STEP_KEYS) {
        add_step<ROWS, VECTORS, SETS>(sums, values.from(key), at, weights, ahead);
        weights += STEP_KEYS * SLOTS / Way::PER_ELEMENT;
    }
    *values.ahead = ahead;
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++)
            store(place + i * piece.stride + j * LANES,
                  SETS == 2 ? sums[0][i][j] + sums[SETS - 1][i][j] : sums[0][i][j]);
}

template <class Way, int ROWS, class Stored>
void add_values(Rows<Stored> values, const Weighed& weighed, const Piece& piece) {
    constexpr int MOST = ROWS <= 4 ? 4 : 2;
    int64_t at = 0;
    for (; at + MOST * LANES <= piece.stride; at += MOST * LANES)
        add_columns<Way, ROWS, MOST>(values, at, weighed, piece);
    int64_t left = (piece.stride - at) / LANES;
    if (left == 1) add_columns<Way, ROWS, 1>(values, at, weighed, piece);
    if constexpr (MOST > 2) {
        if (left == 2) add_columns<Way, ROWS, 2>(values, at, weighed, piece);
        if (left == 3) add_columns<Way, ROWS, 3>(values, at, weighed, piece);
    }
}

// A tile of keys and values where they lie. Where there are fewer keys than places, the last one's
// rows stand in for the others.
template <class Stored>
struct DirectTile {
    Rows<Stored> keys, values;
    Seen seen;
};

template <class Way, int ROWS, class Stored>
void attend_piece(const Call& call, const DirectTile<Stored>& tile, const Piece& piece) {
    constexpr int SLOTS = slots_of(ROWS);
    alignas(64) float scores[TILE * SLOTS], factors[LANES];
    alignas(64) uint32_t weights[TILE * SLOTS / Way::PER_ELEMENT];
    const bool is_whole = SLOTS == 8 && tile.keys.width % 32 == 0;
    for (int64_t key = 0; key < tile.seen.end; key += LANES) {
        const Rows<Stored> keys = tile.keys.from(key);
        float* own = scores + key * SLOTS;
        if (is_whole && keys.are_even(SIDE) && keys.from(SIDE).are_even(SIDE))
            score_even<Way>(keys, piece.queries, call.logit_scale, own);
        else
            score<Way, SLOTS>(keys, piece.queries, call.logit_scale, own);
    }
    weigh_all<Way, SLOTS>(scores, tile.seen, call.logit_cap, piece, weights, factors);
    int64_t num_keys = round_up(tile.seen.end, STEP_KEYS);
    add_values<Way, ROWS>(tile.values, {weights, factors, num_keys}, piece);
}

template <class Way, class Stored>
void attend_rows_directly(const Call& call, const DirectTile<Stored>& tile, const Piece& piece) {
    switch (piece.num_rows) {
        case 1: return attend_piece<Way, 1>(call, tile, piece);
        case 2: return attend_piece<Way, 2>(call, tile, piece);
        case 3: return attend_piece<Way, 3>(call, tile, piece);
        case 4: return attend_piece<Way, 4>(call, tile, piece);
        case 5: return attend_piece<Way, 5>(call, tile, piece);
        case 6: return attend_piece<Way, 6>(call, tile, piece);
        case 7: return attend_piece<Way, 7>(call, tile, piece);
        default: return attend_piece<Way, 8>(call, tile, piece);
    }
}

}  // namespace

#endif
