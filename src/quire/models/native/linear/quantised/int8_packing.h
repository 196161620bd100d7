// Packs rows of W as bytes, in the order that w8a8.cpp shows.
#pragma once

#include "linear/quantised/int8_products.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr float LITTLE_BESIDE_OUTLIERS = 0x1p-30f;

// Sixteen numbers of a row from column i on, 0 for outliers and beyond it.
template <class T>
__m512 others_at(const T* row, int64_t i, const Weights& to) {
    const __mmask16 mask = first(to.num_columns - i);
    return load_some(row + i, to.outliers ? __mmask16(mask & to.others()[i / LANES]) : mask);
}

// By the largest number of a row that is no outlier, or outliers beside which that is nothing.
template <class T>
Scale scale_of(const T* row, const Weights& to) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < to.num_columns; i += LANES)
        largest = _mm512_max_epi32(largest, sizes(others_at(row, i, to)));
    if (to.outliers)
        for (int64_t i = 0; i < OUTLIERS; i++) {
            const float little = to_float(row[to.outliers[i]]) * LITTLE_BESIDE_OUTLIERS;
            largest = _mm512_max_epi32(largest, sizes(_mm512_set1_ps(little)));
        }
    return scale_for(largest);
}

// Writes what a panel begins with for row r: its scale, and its outliers as shares of that.
template <class T>
void pack_head(const T* row, float scale, int64_t r, const Weights& to, uint8_t* out) {
    memcpy(out + r * sizeof scale, &scale, sizeof scale);
    if (!to.outliers || !(scale > 0)) return;
    for (int64_t i = 0; i < OUTLIERS; i++)
        store_as((bf16*)(out + (1 + i / 2) * LINE) + r * 2 + i % 2,
                 to_float(row[to.outliers[i]]) / scale);
}

// Returns whether a column is an outlier; its weight is then at `weight`, as a share of the scale.
inline bool is_outlier(const Weights& weights, const uint8_t* panel, int64_t r, int64_t column,
                       float* weight) {
    if (!weights.outliers || weights.others()[column / LANES] >> column % LANES & 1) return false;
    int64_t i = 0;
    while (weights.outliers[i] != column) i++;
    *weight = to_float(((const bf16*)(panel + (1 + i / 2) * LINE))[r * 2 + i % 2]);
    return true;
}

// Packs a row; `out` is its place in the first of the panel's steps.
template <class T>
void pack_row(const T* row, const Weights& to, Scale by, uint8_t* out) {
    const int64_t k = to.num_columns;
    for (int64_t i = 0; i < k; i += LANES) {
        __m512i q = quantised(others_at(row, i, to), by);
        uint8_t bytes[LANES];
        _mm_storeu_si128((__m128i*)bytes,
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(ZERO))));
        for (int64_t j = 0; j < LANES && i + j < k; j += QUAD)
            memcpy(out + (i + j) / QUAD * LINE, bytes + j, QUAD);
    }
}

// Packs a panel of up to LANES rows.
template <class T>
void pack_panel(const T* rows, int64_t count, const Weights& to, uint8_t* out) {
    const int64_t head = to.head_lines() * LINE;
    memset(out, 0, size_t(head));
    memset(out + head, ZERO, size_t(to.num_steps() * LINE));
    for (int64_t r = 0; r < count; r++) {
        const T* row = rows + r * to.num_columns;
        const Scale by = scale_of(row, to);
        pack_row(row, to, by, out + head + r * QUAD);
        pack_head(row, by.scale, r, to, out);
    }
}

}  // namespace

#endif
