// One row's share of an online softmax: a tile of scores becomes weights, in powers of two.
#pragma once

#include "softmax.h"

namespace {

constexpr float TO_POWER = 1.44269504088896f;  // e^x = 2^(TO_POWER x)

// 2^x for x in [-126, 127], exactly 1 at 0: a minimax polynomial, within 1e-4 for what becomes a
// bfloat16, within 2e-7 for floats. x = n + r, r in [-0.5, 0.5]: the caller has both.
inline floats power_of(floats shifted, floats r, Fma) {
    floats y = r * 1.326472877e-3f + 9.671513183e-3f;
    y = y * r + 5.550733744e-2f;
    y = y * r + 2.402224208e-1f;
    y = y * r + 6.931469776e-1f;
    y = y * r + 1.0f;
    return (floats)((ints)y + ((ints)shifted << 23));
}

#if QUIRE_HAS_BF16_DOT
inline floats power_of(floats shifted, floats r, Dot) {
    floats y = r * 5.500895124e-2f + 2.422110097e-1f;
    y = y * r + 6.932829305e-1f;
    y = y * r + 1.0f;
    return (floats)((ints)y + ((ints)shifted << 23));
}
#endif

inline void put_weights(uint32_t* place, const floats (&weights)[2], Fma) {
    store((float*)place, weights[0]);
    store((float*)place + LANES, weights[1]);
}

#if QUIRE_HAS_BF16_DOT
inline void put_weights(uint32_t* place, const floats (&weights)[2], Dot) {
    __m512bh both = _mm512_cvtne2ps_pbh((__m512)weights[1], (__m512)weights[0]);
    _mm512_storeu_si512(place, (__m512i)both);
}
#endif

struct Running {
    float top;    // of the scores so far
    float total;  // of exp(score - top)
};

// In place.
__attribute__((noinline, unused)) void cap(float* scores, int64_t count, float scale,
                                           float softcap) {
    for (int64_t i = 0; i < count; i += LANES)
        store(scores + i, tangent(load(scores + i) * (scale / softcap)) * softcap);
}

constexpr float HEADROOM = 8, LEAST = -120;

// How a row's scores become weights: 2^((score - top) * slope), where `top` is the largest score or
// so near it that no weight passes 2^HEADROOM: it grows, and all sums shrink, only where one would.
// Weights below 2^LEAST are taken for that. `slope` is positive.
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

// Places of a tile.
struct Seen {
    int64_t first, end;

    ints mask(int64_t place) const {
        ints places;
        for (int i = 0; i < LANES; i++) places[i] = i + int(place);
        return (places >= int(first)) & (places < int(end));
    }
};

// The scores of the first `count` places, a multiple of 2 * LANES, to weights; SOME: of which only
// those `seen`, one at least, are not zero.
template <class Way, bool SOME>
__attribute__((always_inline)) inline void weigh(const float* scores, int64_t count, Seen seen,
                                                 Slope slope, const Row& row, uint32_t* weights) {
    auto score = [&](int64_t i) {
        floats own = load(scores + i);
        return SOME ? choose(seen.mask(i), own, splat(-INFINITE)) : own;
    };
    floats high[2] = {score(0), score(LANES)};
    for (int64_t i = 2 * LANES; i < count; i += 2 * LANES)
        for (int j = 0; j < 2; j++) high[j] = most(score(i + j * LANES), high[j]);
    high[0] = most(high[0], high[1]);
    if (exceeds(high[0], *row.top + slope.headroom)) row.grow(largest(high[0]), slope.slope);
    floats top = splat(*row.top), totals[2] = {load(row.totals), {}};
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        floats each[2];
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            floats below = most(splat(slope.least), load(scores + i + j * LANES) - top);
            floats shifted = below * slope.slope + TO_INTEGER;
            floats rest = below * slope.slope - (shifted - TO_INTEGER);
            each[j] = power_of(shifted, rest, Way());
            if (SOME) each[j] = choose(seen.mask(i + j * LANES), each[j], floats{});
            totals[j] += each[j];
        }
        put_weights(weights + i / Way::PER_ELEMENT, each, Way());
    }
    store(row.totals, totals[0] + totals[1]);
}

}  // namespace
