// Exponential and hyperbolic tangent of vectors, and one row's share of an online softmax.
#pragma once

#include "packing.h"

namespace {

const float INFINITE = __builtin_inff();

inline floats choose(ints mask, floats yes, floats no) { return mask ? yes : no; }

// exp(x) for x <= 88, within 2e-7 of it; zero below -87. x = n log 2 + r, and a Taylor polynomial
// of r in [-0.35, 0.35].
inline floats exponential(floats x) {
    const float TO_INTEGER = 12582912.0f;  // 1.5 * 2^23: adding it rounds
    floats shifted = x * 1.44269504088896f + TO_INTEGER;
    floats n = shifted - TO_INTEGER;
    floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    floats y = r * (1.0f / 5040) + (1.0f / 720);
    y = y * r + (1.0f / 120);
    y = y * r + (1.0f / 24);
    y = y * r + (1.0f / 6);
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    floats out = (floats)((ints)y + ((ints)shifted << 23));
    return choose(x < -87.0f, floats{}, out);
}

// Cephes' tanhf: a polynomial near zero, exponentials beyond.
inline floats tangent(floats x) {
    floats z = x * x;
    floats y = z * -5.70498872745e-3f + 2.06390887954e-2f;
    y = y * z - 5.37397155531e-2f;
    y = y * z + 1.33314422036e-1f;
    y = y * z - 3.33332819422e-1f;
    y = y * z * x + x;
    floats size = (floats)((ints)x & 0x7fffffff);
    floats far = 1.0f - 2.0f / (exponential(choose(size < 20.0f, size, splat(20.0f)) * 2.0f) + 1.0f);
    far = (floats)((ints)far | ((ints)x & int32_t(0x80000000)));
    return choose(size < 0.625f, y, far);
}

inline void put_weights(float* place, floats weights, Fma) { store(place, weights); }

#if QUIRE_HAS_BF16_DOT
inline void put_weights(float* place, floats weights, Dot) {
    _mm256_storeu_si256((__m256i*)place, (__m256i)_mm512_cvtneps_pbh((__m512)weights));
}
#endif

#if defined(__AVX512F__)
inline float largest(floats x) { return _mm512_reduce_max_ps((__m512)x); }
inline float total(floats x) { return _mm512_reduce_add_ps((__m512)x); }
#else
inline float largest(floats x) {
    float out = x[0];
    for (int i = 1; i < LANES; i++) out = x[i] > out ? x[i] : out;
    return out;
}

// In pairs, so that a sum waits for few others.
inline float total(floats x) {
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) x[i] += x[i + step];
    return x[0];
}
#endif

struct Scoring {
    float scale;
    float softcap;  // zero: none
};

struct Running {
    float top;    // of the scores so far
    float total;  // of exp(score - top)
};

// TILE products become weights for the places from `first` to before `end`; what was added up so
// far is to be multiplied by the returned factor.
template <class Way>
__attribute__((noinline)) float weigh(float* products, int64_t first, int64_t end, Scoring scoring, Running* row,
            float* weights) {
    constexpr int VECTORS = TILE / LANES;
    floats scores[VECTORS], most = splat(-INFINITE);
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; i++) scores[i] = load(products + i * LANES) * scoring.scale;
    if (scoring.softcap != 0)
        for (int i = 0; i < VECTORS; i++)
            scores[i] = tangent(scores[i] / scoring.softcap) * scoring.softcap;
    if (first > 0 || end < TILE) {
        ints place;
        for (int i = 0; i < LANES; i++) place[i] = i;
        for (int i = 0; i < VECTORS; i++, place += LANES)
            scores[i] = choose((place >= int(first)) & (place < int(end)), scores[i],
                               splat(-INFINITE));
    }
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; i++) most = choose(scores[i] > most, scores[i], most);
    float top = largest(most);
    top = top > row->top ? top : row->top;
    if (top == -INFINITE) {
        memset(weights, 0, TILE / Way::PER_ELEMENT * 4);
        return 1;
    }
    floats sum = {};
#pragma GCC unroll 16
    for (int i = 0; i < VECTORS; i++) {
        floats each = exponential(scores[i] - top);
        sum += each;
        put_weights(weights + i * LANES / Way::PER_ELEMENT, each, Way());
    }
    float factor = exponential(splat(row->top - top))[0];
    row->top = top;
    row->total = row->total * factor + total(sum);
    return factor;
}

}  // namespace
