// Packs rows of W as bytes, in the order that w8a8.cpp shows.
#pragma once

#include "linear/quantised/int8_products.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

template <class T>
Scale scale_of(const T* row, int64_t k) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < k; i += LANES)
        largest = _mm512_max_epi32(largest, sizes(load_some(row + i, first(k - i))));
    return scale_for(largest);
}

// Packs a row; `out` is its place in the first of the panel's steps.
template <class T>
void pack_row(const T* row, int64_t k, Scale by, uint8_t* out) {
    for (int64_t i = 0; i < k; i += LANES) {
        __m512i q = quantised(load_some(row + i, first(k - i)), by);
        uint8_t bytes[LANES];
        _mm_storeu_si128((__m128i*)bytes,
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(ZERO))));
        for (int64_t j = 0; j < LANES && i + j < k; j += QUAD)
            memcpy(out + (i + j) / QUAD * LINE, bytes + j, QUAD);
    }
}

// Packs a panel of up to LANES rows of k numbers each, `stride` apart.
template <class T>
void pack_panel(const T* rows, int64_t stride, int64_t count, int64_t k, uint8_t* out) {
    memset(out, 0, LINE);
    memset(out + LINE, ZERO, size_t(ratio_up(k, QUAD) * LINE));
    for (int64_t r = 0; r < count; r++) {
        Scale by = scale_of(rows + r * stride, k);
        pack_row(rows + r * stride, k, by, out + LINE + r * QUAD);
        memcpy(out + r * sizeof by.scale, &by.scale, sizeof by.scale);
    }
}

}  // namespace

#endif
