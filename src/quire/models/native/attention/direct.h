// Attention of the few query heads that share a K/V head, over K and V where they lie. Nothing is
// packed, since bandwidth is what a decode has least of. Values are multiplied by pairs of keys,
// which are interleaved as they are read.
#pragma once

#include "attention/direct_scores.h"

#if QUIRE_HAS_BF16_DOT

namespace {

constexpr int STEP_KEYS = 4;  // keys whose values are added at a time

// The rows of a piece, at most MOST_SLOTS query heads of one K/V head and one position.
struct Piece {
    float* queries;  // [parts of a key, LANES]
    Running* running;
    float* totals;  // [slots, LANES], as vectors of scores
    float* sums;    // [num_rows, stride], a multiple of LANES
    int64_t num_rows, stride;
};

// Puts the row's query into its slots.
template <int SLOTS>
inline void spread(const uint32_t* query, int64_t depth, int64_t row, float* queries) {
    constexpr int64_t SHARE = SLOTS == 8 ? 2 : 4, PLACES = LANES / SHARE;
    if (row == 0) memset(queries, 0, size_t(depth * PLACES) * 4);
    for (int64_t i = 0; i < depth; i += SHARE)
        for (int64_t place = row; place < PLACES; place += SLOTS)
            memcpy(queries + i * PLACES + place * SHARE, query + i, SHARE * 4);
}

inline void spread(const uint32_t* query, int64_t depth, int64_t row, const Piece& piece) {
    switch (slots_of(piece.num_rows)) {
        case 1: return spread<1>(query, depth, row, piece.queries);
        case 2: return spread<2>(query, depth, row, piece.queries);
        case 4: return spread<4>(query, depth, row, piece.queries);
        default: return spread<8>(query, depth, row, piece.queries);
    }
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

// Raises the rows' tops, from `old` to `top`, and shrinks what was added up so far, as `Row::grow`.
template <int SLOTS>
__attribute__((noinline)) void grow(const Piece& piece, floats old, floats top, Slope slope) {
    floats factor = exponential((old - top) * (slope.slope / TO_POWER));
    factor = choose(old == top, splat(1), factor);
    for (int i = 0; i < SLOTS; i++)
        store(piece.totals + i * LANES, load(piece.totals + i * LANES) * factor);
    for (int64_t row = 0; row < piece.num_rows; row++) {
        const int home = Lanes<SLOTS>::home(int(row));
        float* sums = piece.sums + row * piece.stride;
        piece.running[row].top = top[home];
        for (int64_t i = 0; i < piece.stride; i += LANES)
            store(sums + i, load(sums + i) * factor[home]);
    }
}

// Returns the largest score of each row so far, in all of its lanes, or one so near it that the
// row's sums need not be shrunk: what `weigh_row` does of one row.
template <int SLOTS>
inline floats top_of(const float* scores, int64_t first, int64_t end, Slope slope,
                     const Piece& piece) {
    static constexpr Table ROWS = tabulate(Lanes<SLOTS>::row);
    const ints own_rows = ROWS;
    floats high[2] = {splat(-INFINITE), splat(-INFINITE)};
    for (int64_t i = first; i < end; i += 2)
        for (int j = 0; j < 2; j++) high[j] = most(load(scores + (i + j) * LANES), high[j]);
    const __mmask16 mask = __mmask16((1u << 2 * piece.num_rows) - 1);
    const floats old = permute((floats)_mm512_maskz_loadu_ps(mask, piece.running), own_rows * 2);
    const floats highest = combine<SLOTS, 1>(most(high[0], high[1]), most);
    const __mmask16 is_higher = _mm512_cmp_ps_mask(
        (__m512)highest, (__m512)(old + slope.headroom), _CMP_GT_OQ);
    if (!is_higher) return old;
    const floats top = (floats)_mm512_mask_mov_ps((__m512)old, is_higher, (__m512)highest);
    grow<SLOTS>(piece, old, top, slope);
    return top;
}

// Makes weights of the scores of `seen` keys, and zeros of those beside them up to multiples of
// 2 * LANES. Each row does what `weigh` does, in the same order. Every row sees a key.
template <class Way, int SLOTS>
__attribute__((noinline)) void weigh_all(float* scores, Seen seen, Slope slope,
                                         const Piece& piece, uint32_t* weights) {
    typedef Lanes<SLOTS> L;
    constexpr int STEP = 2 * SLOTS;  // vectors of 2 * LANES keys
    static constexpr Table KEYS = tabulate(L::key);
    const int64_t first = seen.first / (2 * LANES) * STEP;
    const int64_t end = ratio_up(seen.end, 2 * LANES) * STEP;
    const auto sees_all = [&](int64_t i, int64_t count) {
        return i * L::KEYS >= seen.first && (i + count) * L::KEYS <= seen.end;
    };
    const auto sees = [&](int64_t i) {
        const ints keys = ints(KEYS) + int(i * L::KEYS);
        return (keys >= int(seen.first)) & (keys < int(seen.end));
    };
    for (int64_t i = first; i < end; i++)
        if (!sees_all(i, 1))
            store(scores + i * LANES,
                  choose(sees(i), load(scores + i * LANES), splat(-INFINITE)));
    const floats top = top_of<SLOTS>(scores, first, end, slope, piece);
    floats totals[2][SLOTS] = {};
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++) totals[0][i] = load(piece.totals + i * LANES);
    for (int64_t i = first; i < end; i += STEP) {
        const bool is_whole = sees_all(i, STEP);
#pragma GCC unroll 8
        for (int at = 0; at < STEP; at += 2) {
            floats each[2];
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                each[j] = weight_of(load(scores + (i + at + j) * LANES), top, slope, Way());
                if (!is_whole) each[j] = choose(sees(i + at + j), each[j], floats{});
                totals[(at + j) / SLOTS][(at + j) % SLOTS] += each[j];
            }
            put<SLOTS>(weights + (i + at) * LANES / Way::PER_ELEMENT, each, Way());
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++)
        store(piece.totals + i * LANES, totals[0][i] + totals[1][i]);
}

// From what `weigh_all` keeps of the rows to what all tasks do.
template <int SLOTS>
void sum_up_rows(const Piece& piece, Slope slope) {
    typedef Lanes<SLOTS> L;
    for (int row = 0; row < piece.num_rows; row++) {
        floats own;
        for (int key = 0; key < LANES; key++)
            own[key] = piece.totals[key / L::KEYS * LANES + L::lane(row, key % L::KEYS)];
        Running& running = piece.running[row];
        running = {running.top * (slope.slope / TO_POWER), total(own)};
    }
}

inline void sum_up(const Piece& piece, Slope slope) {
    switch (slots_of(piece.num_rows)) {
        case 1: return sum_up_rows<1>(piece, slope);
        case 2: return sum_up_rows<2>(piece, slope);
        case 4: return sum_up_rows<4>(piece, slope);
        default: return sum_up_rows<8>(piece, slope);
    }
}

// The weights of the keys from `first` up to `end`, multiples of STEP_KEYS.
struct Weighed {
    const uint32_t* weights;
    int64_t first, end;
};

// Adds VECTORS vectors of the values of STEP_KEYS keys, from element `at` on, times the rows'
// weights.
template <int ROWS, int VECTORS>
inline void add_step(floats (&sums)[ROWS][VECTORS], Rows<float> values, int64_t at,
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
                sums[i][j] = sums[i][j] + value * weight;
            }
        }
}

template <int ROWS, int VECTORS>
inline void add_step(floats (&sums)[ROWS][VECTORS], Rows<bf16> values, int64_t at,
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
                floats(&sum)[VECTORS] = sums[i];
                sum[j] = dot(sum[j], low, weight, Dot());
                if (j + 1 < VECTORS) sum[j + 1] = dot(sum[j + 1], high, weight, Dot());
            }
        }
}

template <class Way, int ROWS, int VECTORS, class Stored>
__attribute__((noinline)) void add_columns(Rows<Stored> values, int64_t at,
                                           const Weighed& weighed, const Piece& piece) {
    constexpr int SLOTS = slots_of(ROWS);
    floats sums[ROWS][VECTORS];
    float* place = piece.sums + at;
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) sums[i][j] = load(place + i * piece.stride + j * LANES);
    const uint32_t* weights = weighed.weights + weighed.first * SLOTS / Way::PER_ELEMENT;
    Ahead ahead = *values.ahead;
    for (int64_t key = weighed.first; key < weighed.end; key += STEP_KEYS) {
        add_step(sums, values.from(key), at, weights, ahead);
        weights += STEP_KEYS * SLOTS / Way::PER_ELEMENT;
    }
    *values.ahead = ahead;
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) store(place + i * piece.stride + j * LANES, sums[i][j]);
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
void attend_piece(const Call& call, const DirectTile<Stored>& tile, Slope slope,
                  const Piece& piece) {
    constexpr int SLOTS = slots_of(ROWS);
    alignas(64) float scores[TILE * SLOTS];
    alignas(64) uint32_t weights[TILE * SLOTS / Way::PER_ELEMENT];
    const int64_t first = tile.seen.first - tile.seen.first % LANES;
    const bool is_whole = tile.keys.width % 32 == 0;
    for (int64_t key = first; key < tile.seen.end; key += LANES) {
        const Rows<Stored> keys = tile.keys.from(key);
        float* own = scores + key * SLOTS;
        if constexpr (SLOTS < 8)
            score_few<Way, SLOTS>(keys, piece.queries, own);
        else if (is_whole && keys.are_even(SIDE) && keys.from(SIDE).are_even(SIDE))
            score_even<Way>(keys, piece.queries, own);
        else
            score_many<Way>(keys, piece.queries, own);
    }
    if (call.logit_cap != 0)
        cap(scores + first * SLOTS, round_up(tile.seen.end - first, LANES) * SLOTS,
            call.logit_scale, call.logit_cap);
    weigh_all<Way, SLOTS>(scores, tile.seen, slope, piece, weights);
    const Weighed weighed{weights, tile.seen.first - tile.seen.first % STEP_KEYS,
                          round_up(tile.seen.end, STEP_KEYS)};
    add_values<Way, ROWS>(tile.values, weighed, piece);
}

template <class Way, class Stored>
void attend_rows_directly(const Call& call, const DirectTile<Stored>& tile, Slope slope,
                          const Piece& piece) {
    switch (piece.num_rows) {
        case 1: return attend_piece<Way, 1>(call, tile, slope, piece);
        case 2: return attend_piece<Way, 2>(call, tile, slope, piece);
        case 3: return attend_piece<Way, 3>(call, tile, slope, piece);
        case 4: return attend_piece<Way, 4>(call, tile, slope, piece);
        case 5: return attend_piece<Way, 5>(call, tile, slope, piece);
        case 6: return attend_piece<Way, 6>(call, tile, slope, piece);
        case 7: return attend_piece<Way, 7>(call, tile, slope, piece);
        default: return attend_piece<Way, 8>(call, tile, slope, piece);
    }
}

}  // namespace

#endif
