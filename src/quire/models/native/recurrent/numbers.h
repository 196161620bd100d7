// Rows of floats or bfloat16 as vectors of floats, and the one way to multiply and add.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "decoder/activations.h"

namespace {

typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

// a * b + c, rounded once where the instruction set can, so that the compiler has no choice that it
// could make differently in two places. Sums of products are written so, and never with * and +.
inline floats multiply_add(floats a, floats b, floats c) {
#if defined(__AVX512F__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

// Elements as floats.
inline floats take_row(const float* place) { return load(place); }

inline floats take_row(const bf16* place) {
    halves bits;
    memcpy(&bits, place, sizeof bits);
    return (floats)(__builtin_convertvector(bits, words) << 16);
}

// Lanes to memory, rounded to the nearest, ties to even; a NaN stays one.
inline void put_row(float* place, floats x) { store(place, x); }

inline void put_row(bf16* place, floats x) {
#if QUIRE_HAS_BF16_DOT
    __m256i out = round_off(x);
#else
    words bits = (words)x;
    words near = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    words is_nan = (words)((ints)(bits & 0x7fffffffu) > 0x7f800000);
    halves out = __builtin_convertvector((is_nan & ((bits >> 16) | 0x40)) | (~is_nan & near), halves);
#endif
    memcpy(place, &out, sizeof out);
}

// The first `count` elements as floats, zeros after; no others are read.
template <class Stored>
inline floats take_row(const Stored* place, int64_t count) {
    if (count >= LANES) return take_row(place);
    Stored some[LANES] = {};
    for (int64_t i = 0; i < count; i++) some[i] = place[i];
    return take_row(some);
}

// The first `count` lanes to memory, rounded; nothing else is written.
template <class Stored>
inline void put_row(Stored* place, floats x, int64_t count) {
    if (count >= LANES) return put_row(place, x);
    Stored all[LANES];
    put_row(all, x);
    for (int64_t i = 0; i < count; i++) place[i] = all[i];
}

// Numbers too small to be normal count as zero on this thread while it lives: states that fade
// would take a hundred times as long, and threads could differ in it.
class WithoutDenormals {
#if defined(__SSE2__)
    static constexpr unsigned OFF = 0x8040;  // flush to zero, denormals are zeros
    const unsigned before = _mm_getcsr();

   public:
    WithoutDenormals() { _mm_setcsr(before | OFF); }
    ~WithoutDenormals() { _mm_setcsr(before); }
#endif
};

template <class Act>
void of_stored(bool is_bf16, Act act) {
    if (is_bf16)
        act(bf16{});
    else
        act(float{});
}

}  // namespace
