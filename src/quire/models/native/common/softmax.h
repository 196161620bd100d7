// Exponential and hyperbolic tangent of vectors, and reductions.
#pragma once

#include "common/packing.h"

namespace {

const float INFINITE = __builtin_inff();
constexpr float TO_INTEGER = 12582912.0f;  // 1.5 * 2^23: adding it rounds

inline floats choose(ints mask, floats yes, floats no) { return mask ? yes : no; }

// exp(x) for x <= 88, within 2e-7 of it; zero below -87. x = n log 2 + r, and a Taylor polynomial
// of r in [-0.35, 0.35].
inline floats exponential(floats x) {
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

#if defined(__AVX512F__)
inline floats most(floats a, floats b) { return (floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline bool exceeds(floats x, float limit) {
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
}
inline float largest(floats x) { return _mm512_reduce_max_ps((__m512)x); }
inline float total(floats x) { return _mm512_reduce_add_ps((__m512)x); }
#else
inline floats most(floats a, floats b) { return choose(a > b, a, b); }
inline bool exceeds(floats x, float limit) {
    bool out = false;
    for (int i = 0; i < LANES; i++) out |= x[i] > limit;
    return out;
}
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

}  // namespace
