// Numbers of either type to and from vectors of floats, and from these to bytes with a scale.
#pragma once

#include "common/scale.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr int64_t GROUP = 256;  // columns of x that share a scale
constexpr int64_t GROUP_VECTORS = GROUP / LANES;
constexpr int32_t ZERO = 128;  // the byte of a weight that is 0

inline __mmask16 first(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? __mmask16((1 << count) - 1) : 0;
}

inline __m512 load_some(const float* from, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, from);
}

inline __m512 load_some(const bf16* from, __mmask16 mask) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline void put(float* place, __m512 numbers, __mmask16 mask) {
    _mm512_mask_storeu_ps(place, mask, numbers);
}

inline void put(bf16* place, __m512 numbers, __mmask16 mask) {
    _mm256_mask_storeu_epi16(place, mask, (__m256i)_mm512_cvtneps_pbh(numbers));
}

// The bits of absolute numbers, which are in the numbers' order, NaN above all.
inline __m512i sizes(__m512 numbers) {
    return _mm512_and_si512(_mm512_castps_si512(numbers), _mm512_set1_epi32(0x7fffffff));
}

inline Scale scale_for(__m512i largest) { return scale_for(uint32_t(_mm512_reduce_max_epi32(largest))); }

inline __m512i quantised(__m512 numbers, Scale by) {
    if (by.inverse == 0) return _mm512_setzero_si512();  // 0 times NaN is none
    return _mm512_cvtps_epi32(_mm512_mul_ps(numbers, _mm512_set1_ps(by.inverse)));
}

// Where `kept` is not null, it has a bit for each column, and those without one count as 0.
template <class T>
void quantise_group(const T* x, int64_t count, const __mmask16* kept, int8_t* numbers,
                    float* scale, int32_t* offset) {
    __m512 read[GROUP_VECTORS];
    __m512i largest = _mm512_setzero_si512(), sum = largest;
#pragma GCC unroll 16
    for (int64_t i = 0; i < GROUP_VECTORS; i++) {
        const __mmask16 mask = first(count - i * LANES);
        read[i] = load_some(x + i * LANES, kept && mask ? __mmask16(mask & kept[i]) : mask);
        largest = _mm512_max_epi32(largest, sizes(read[i]));
    }
    Scale by = scale_for(largest);
#pragma GCC unroll 16
    for (int64_t i = 0; i < GROUP_VECTORS; i++) {
        if (i * LANES >= count) break;
        __m512i q = quantised(read[i], by);
        sum = _mm512_add_epi32(sum, q);
        _mm_storeu_si128((__m128i*)(numbers + i * LANES), _mm512_cvtepi32_epi8(q));
    }
    *scale = by.scale;
    *offset = -ZERO * _mm512_reduce_add_epi32(sum);
}

}  // namespace

#endif
