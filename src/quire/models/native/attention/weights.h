// One row's share of an online softmax: a tile of scores becomes weights, in powers of two.
#pragma once

#include "common/softmax.h"

namespace {

constexpr float TO_POWER = 1.44269504088896f;  // e^x = 2^(TO_POWER x)

struct Running {
    float top;    // the largest score so far
    float total;  // the sum of exp(score - top)
};

// Scales scores and caps them, in place.
__attribute__((noinline, unused)) void cap(float* scores, int64_t count, float scale,
                                           float softcap) {
    for (int64_t i = 0; i < count; i += LANES)
        store(scores + i, tangent(load(scores + i) * (scale / softcap)) * softcap);
}

constexpr float HEADROOM = 8, LEAST = -120;

// A row's scores become the weights 2^((score - top) * slope), where `top` is the largest score or
// so near it that no weight passes 2^HEADROOM: it grows, and all sums shrink, only where one would.
// Weights below 2^LEAST are taken to be that. `slope` is positive.
struct Slope {
    float slope, headroom, least;

    explicit Slope(float slope)
        : slope(slope), headroom(HEADROOM / slope), least(LEAST / slope) {}
};

struct Row {
    float *top, *totals, *sums;  // [1], [LANES], [stride]
    int64_t stride;

    void grow(float to, float slope) const {
        floats factor = exponential(splat((*top - to) * (slope / TO_POWER)));
        *top = to;
        store(totals, load(totals) * factor);
        for (int64_t i = 0; i < stride; i += LANES) store(sums + i, load(sums + i) * factor);
    }
};

// Returns 2^((score - top) * slope): 2^x, exactly 1 at 0, is a minimax polynomial of r in [-0.5,
// 0.5], within 2e-7, times 2^n, where x = n + r.
inline floats weight_of(floats score, floats top, Slope slope, Fma) {
    const floats below = most(splat(slope.least), score - top);
    const floats shifted = below * slope.slope + TO_INTEGER;
    const floats r = below * slope.slope - (shifted - TO_INTEGER);
    floats y = r * 1.326472877e-3f + 9.671513183e-3f;
    y = y * r + 5.550733744e-2f;
    y = y * r + 2.402224208e-1f;
    y = y * r + 6.931469776e-1f;
    y = y * r + 1.0f;
    return (floats)((words)y + ((words)shifted << 23));  // of a place that is not seen: anything
}

#if QUIRE_HAS_BF16_DOT
// Does the same within 1e-4, for weights that become bfloat16.
inline floats weight_of(floats score, floats top, Slope slope, Dot) {
    const __m512 origin = (__m512)(top * slope.slope);
    // A number that is too small to be a normal float would take as long as a hundred others.
    const floats x = most(splat(LEAST), (floats)_mm512_fmsub_ps((__m512)score,
                                                                _mm512_set1_ps(slope.slope), origin));
    const floats r = (floats)_mm512_reduce_ps((__m512)x, 0);
    floats y = r * 5.500895124e-2f + 2.422110097e-1f;
    y = y * r + 6.932829305e-1f;
    y = y * r + 1.0f;
    return (floats)_mm512_scalef_ps((__m512)y, (__m512)(x - r));
}
#endif

// The keys of a tile that a row sees: places `first` up to `end`.
struct Seen {
    int64_t first, end;

    ints mask(int64_t place) const {
        ints places;
        for (int i = 0; i < LANES; i++) places[i] = i + int(place);
        return (places >= int(first)) & (places < int(end));
    }
};

// Weighs the scores of a row in a tile, two vectors at a time: `read` gives the i-th vector, with
// -inf for what is not seen, `weight` makes weights of it, `put` stores two of those.
template <class Read, class Weight, class Put>
__attribute__((always_inline)) inline void weigh_row(int64_t count, Slope slope, const Row& row,
                                                     Read read, Weight weight, Put put) {
    floats high[2] = {read(0), read(LANES)};
    for (int64_t i = 2 * LANES; i < count; i += 2 * LANES)
        for (int j = 0; j < 2; j++) high[j] = most(read(i + j * LANES), high[j]);
    high[0] = most(high[0], high[1]);
    if (exceeds(high[0], *row.top + slope.headroom)) row.grow(largest(high[0]), slope.slope);
    const float top = *row.top;
    floats totals[2] = {load(row.totals), {}};
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        floats each[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            each[j] = weight(i + j * LANES, top);
            totals[j] += each[j];
        }
        put(i, each);
    }
    store(row.totals, totals[0] + totals[1]);
}

// Makes weights of the scores of the first `count` places, a multiple of 2 * LANES. With SOME only
// those that are `seen`, at least one, are not zero. 2^x, exactly 1 at 0, is a minimax polynomial
// of r in [-0.5, 0.5], within 2e-7, times 2^n, where x = n + r.
template <bool SOME>
__attribute__((always_inline)) inline void weigh(const float* scores, int64_t count, Seen seen,
                                                 Slope slope, const Row& row, uint32_t* weights,
                                                 Fma) {
    const auto read = [&](int64_t i) {
        const floats own = load(scores + i);
        return SOME ? choose(seen.mask(i), own, splat(-INFINITE)) : own;
    };
    const auto weight = [&](int64_t i, float top) {
        const floats out = weight_of(load(scores + i), splat(top), slope, Fma());
        return SOME ? choose(seen.mask(i), out, floats{}) : out;
    };
    weigh_row(count, slope, row, read, weight, [&](int64_t i, const floats(&each)[2]) {
        store((float*)weights + i, each[0]);
        store((float*)weights + i + LANES, each[1]);
    });
}

#if QUIRE_HAS_BF16_DOT
template <bool SOME>
__attribute__((always_inline)) inline void weigh(const float* scores, int64_t count, Seen seen,
                                                 Slope slope, const Row& row, uint32_t* weights,
                                                 Dot) {
    const uint64_t all = ~uint64_t(0);
    const uint64_t bits = SOME ? all >> (64 - seen.end) & all << seen.first : all;
    const auto mask = [=](int64_t i) { return __mmask16(bits >> i); };
    const auto read = [&](int64_t i) {
        const floats own = load(scores + i);
        return SOME ? (floats)_mm512_mask_mov_ps(_mm512_set1_ps(-INFINITE), mask(i), (__m512)own)
                    : own;
    };
    const auto weight = [&](int64_t i, float top) {
        const __m512 out = (__m512)weight_of(load(scores + i), splat(top), slope, Dot());
        return (floats)(SOME ? _mm512_maskz_mov_ps(mask(i), out) : out);
    };
    weigh_row(count, slope, row, read, weight, [&](int64_t i, const floats(&each)[2]) {
        __m512bh both = _mm512_cvtne2ps_pbh((__m512)each[1], (__m512)each[0]);
        _mm512_storeu_si512(weights + i / 2, (__m512i)both);
    });
}
#endif

}  // namespace
