// K and V kept in a byte an element, with a bfloat16 scale for each token and head, as
// models/kv/kv_codec.py has them: to the bit, except for what is not finite, which reads as not
// finite in every element here too.
#pragma once

#include "common/softmax.h"

namespace {

enum Number : int64_t { AS_COMPUTED, INT8, FP8_E4M3 };  // as attention/cpu.py numbers them

constexpr float SMALLEST_SCALE = 1.17549435e-38f;
// The bits of fp8 e4m3, whose exponents are those of a float less FP8_BIAS.
constexpr int FP8_MANTISSA = 3, FLOAT_MANTISSA = 23, FP8_BIAS = 127 - 7;
constexpr int FP8_SHIFT = FLOAT_MANTISSA - FP8_MANTISSA;
constexpr float FP8_SMALLEST_NORMAL = 0x1p-6f, FP8_SMALLEST = 0x1p-9f;

// Lanes are converted to or from smaller numbers by loops: compilers turn these into one
// instruction, but not __builtin_convertvector.
template <class From>
inline ints widen(const From* from) {
    int32_t out[LANES];
    for (int i = 0; i < LANES; i++) out[i] = from[i];
    ints lanes;
    memcpy(&lanes, out, sizeof lanes);
    return lanes;
}

template <class To>
inline void narrow(ints lanes, To* to) {
    int32_t from[LANES];
    memcpy(from, &lanes, sizeof lanes);
    for (int i = 0; i < LANES; i++) to[i] = To(from[i]);
}

// Returns the numbers that the bytes stand for, before they are scaled. The two bytes that are no
// number come up only under a scale that is none either.
template <Number NUMBER>
inline floats numbers_of(const int8_t* kept) {
    ints bits = widen(kept);
    if (NUMBER == INT8) return __builtin_convertvector(bits, floats);
    ints magnitude = bits & 0x7f, sign = bits & int32_t(0x80000000);
    floats size = (floats)((magnitude << FP8_SHIFT) + (FP8_BIAS << FLOAT_MANTISSA));
    // Subnormal numbers were given a leading one, at half of their step.
    floats small = (size - FP8_SMALLEST_NORMAL / 2) * 2.0f;
    return (floats)((ints)choose(magnitude < (1 << FP8_MANTISSA), small, size) | sign);
}

inline void store_as(float* place, floats x) { store(place, x); }

inline void store_as(bf16* place, floats x) {
#if QUIRE_HAS_BF16_DOT
    __m256i out = (__m256i)_mm512_cvtneps_pbh((__m512)x);
    memcpy(place, &out, sizeof out);
#else
    ints bits = (ints)x, rounded = bits + 0x7fff + ((bits >> 16) & 1);
    ints is_nan = (bits & 0x7fffffff) > 0x7f800000;
    narrow((is_nan ? bits | 0x400000 : rounded) >> 16, &place->bits);
#endif
}

template <Number NUMBER, class Stored>
inline void decode(const int8_t* kept, int64_t width, bf16 scale, Stored* out) {
    const floats factor = splat(to_float(scale));
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store_as(out + i, numbers_of<NUMBER>(kept + i) * factor);
    if (i == width) return;
    int8_t part[LANES] = {};
    Stored last[LANES];
    memcpy(part, kept + i, size_t(width - i));
    store_as(last, numbers_of<NUMBER>(part) * factor);
    memcpy(out + i, last, size_t(width - i) * sizeof(Stored));
}

// Decodes one token's K or V of one head.
template <class Stored>
inline void decode(const int8_t* kept, int64_t width, bf16 scale, Number number, Stored* out) {
    number == INT8 ? decode<INT8>(kept, width, scale, out)
                   : decode<FP8_E4M3>(kept, width, scale, out);
}

// Rounds to the nearest number that can be stored, ties to even, and NaN to 0.
inline ints kept_as(floats x, Number number) {
    if (number == INT8) {
        floats within = most(choose(x > 127.0f, splat(127), x), splat(-127));
        return __builtin_convertvector(within + TO_INTEGER - TO_INTEGER, ints);
    }
    floats size = (floats)((ints)x & 0x7fffffff);
    size = choose(size > 448.0f, splat(448), size);
    ints small = __builtin_convertvector(size * (1 / FP8_SMALLEST) + TO_INTEGER - TO_INTEGER, ints);
    ints bits = (ints)size;
    bits += (1 << (FP8_SHIFT - 1)) - 1 + ((bits >> FP8_SHIFT) & 1);
    bits = (bits >> FP8_SHIFT) - (FP8_BIAS << FP8_MANTISSA);
    bits = size < FP8_SMALLEST_NORMAL ? small : bits;
    return bits | ((ints)x >> 24 & 0x80);
}

// Returns the largest absolute element, or a NaN if one is.
template <class Stored>
inline float largest_of(const Stored* row, int64_t width) {
    floats high = {};
    for (int64_t i = 0; i < width; i += LANES) {
        floats size = (floats)(widen(row + i, smaller(LANES, width - i), Fma()) & 0x7fffffff);
        high = choose((size > high) | (size != size), size, high);
    }
    float out = 0;
    for (int i = 0; i < LANES; i++) out = high[i] > out || high[i] != high[i] ? high[i] : out;
    return out;
}

// Encodes a row. Its scale is the largest element over the largest number, rounded up to bfloat16.
template <class Stored>
inline void encode(const Stored* row, int64_t width, Number number, int8_t* kept, bf16* scale) {
    float exact = largest_of(row, width) / (number == INT8 ? 127 : 448);
    if (exact < SMALLEST_SCALE) exact = SMALLEST_SCALE;
    store_as(scale, exact);
    if (to_float(*scale) < exact) scale->bits++;
    const floats factor = splat(to_float(*scale));
    for (int64_t i = 0; i < width; i += LANES) {
        const int64_t count = smaller(LANES, width - i);
        floats x = (floats)widen(row + i, count, Fma()) / factor;
        int8_t out[LANES];
        narrow(x == x ? kept_as(x, number) : ints{}, out);
        memcpy(kept + i, out, size_t(count));
    }
}

}  // namespace
