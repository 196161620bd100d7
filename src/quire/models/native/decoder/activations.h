// The activations that gate an MLP, rounded where transformers rounds.
#pragma once

#include "common/softmax.h"

namespace {

template <class Stored>
inline floats rounded(floats x) {
    return x;
}

#if QUIRE_HAS_BF16_DOT
inline __m256i round_off(floats x) { return (__m256i)_mm512_cvtneps_pbh((__m512)x); }

template <>
inline floats rounded<bf16>(floats x) {
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(round_off(x)), 16);
}
#endif

enum Act : int64_t { SILU = 0, GELU_TANH = 1 };

template <class Stored>
inline floats silu(floats x) {
    floats out = x / (exponential(most(x, splat(-87)) * -1.0f) + 1.0f);
    return choose(x < -87.0f, floats{}, out);
}

#if QUIRE_HAS_BF16_DOT
// 2^x within 3e-6 of it: far less than what is rounded off next. x = n + r, and a Taylor polynomial
// of r in [-0.5, 0.5].
inline floats power_of_two(floats x) {
    floats r = (floats)_mm512_reduce_ps((__m512)x, 0);
    floats y = r * 1.3333558e-3f + 9.6181291e-3f;
    y = y * r + 5.5504109e-2f;
    y = y * r + 2.4022651e-1f;
    y = y * r + 6.9314718e-1f;
    y = y * r + 1.0f;
    return (floats)_mm512_scalef_ps((__m512)y, (__m512)(x - r));
}

template <>
inline floats silu<bf16>(floats x) {
    floats below = power_of_two(x * -1.44269504f) + 1.0f;
    return x * (floats)_mm512_rcp14_ps((__m512)below);
}
#endif

inline floats gelu_tanh(floats x) {
    floats inner = (x * x * x * 0.044715f + x) * 0.7978845608028654f;
    return x * 0.5f * (tangent(inner) + 1.0f);
}

// A gate, not yet rounded.
template <class Stored>
inline floats acted(int64_t act, floats gate) {
    return act == SILU ? silu<Stored>(gate) : gelu_tanh(gate);
}

// What it lets through of a value, not yet rounded.
template <class Stored>
inline floats gated(int64_t act, floats gate, floats value) {
    return rounded<Stored>(acted<Stored>(act, gate)) * value;
}

}  // namespace
