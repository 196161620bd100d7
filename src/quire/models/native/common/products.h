// The one matrix product of attention: C[rows, columns] += A[rows, depth] B[depth, columns], where
// an element of A and B is four bytes: a float, or a pair of bfloat16 whose two products are added
// (Dot). B is packed: `depth` rows of `stride` elements. Sums are floats.
#pragma once

#include "common/common.h"

namespace {

#if defined(__AVX512F__)
constexpr int MAX_VECTORS = 4;
#else
constexpr int MAX_VECTORS = 2;
#endif

// Of a way to multiply whose registers need no preparation.
template <class Way>
struct Vectors {};

struct Fma {
    static constexpr int PER_ELEMENT = 1;
    static constexpr int MAX_ROWS = 6;
    static constexpr bool IS_SHAPED = false;  // for a number of rows, which takes its time
    static constexpr int64_t DEPTH = 1, COLUMNS = LANES;  // of which those of a product are multiples
    typedef Vectors<Fma> Registers;
    static inline floats add(floats sum, uint32_t a, const uint32_t* b) {
        float each;
        memcpy(&each, &a, 4);
        return sum + splat(each) * load((const float*)b);
    }
};

#if QUIRE_HAS_BF16_DOT
struct Dot {
    static constexpr int PER_ELEMENT = 2;
    static constexpr int MAX_ROWS = 6;
    static constexpr bool IS_SHAPED = false;
    static constexpr int64_t DEPTH = 1, COLUMNS = LANES;
    typedef Vectors<Dot> Registers;
    static inline floats add(floats sum, uint32_t a, const uint32_t* b) {
        return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(b),
                                        (__m512bh)_mm512_set1_epi32(int(a)));
    }
};
#endif

struct Product {
    const uint32_t* a;
    int64_t a_stride;
    const uint32_t* b;
    int64_t b_stride;
    int64_t depth;
    float* c;
    int64_t c_stride;
    bool is_sum;  // or else C is zeroed before anything is added
};

template <class Way, int ROWS, int VECTORS>
__attribute__((noinline)) void multiply_tile(const Product& p, int64_t column) {
    floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            sums[i][j] = p.is_sum ? load(p.c + i * p.c_stride + column + j * LANES) : floats{};
    const uint32_t* b = p.b + column;
    for (int64_t k = 0; k < p.depth; k++, b += p.b_stride)
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++)
                sums[i][j] = Way::add(sums[i][j], p.a[i * p.a_stride + k], b + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            store(p.c + i * p.c_stride + column + j * LANES, sums[i][j]);
}

template <class Way, int ROWS>
void multiply_rows(const Product& p, int64_t columns) {
    int64_t at = 0;
    for (; at + MAX_VECTORS * LANES <= columns; at += MAX_VECTORS * LANES)
        multiply_tile<Way, ROWS, MAX_VECTORS>(p, at);
    if (MAX_VECTORS > 2 && at + 2 * LANES <= columns) {
        multiply_tile<Way, ROWS, 2>(p, at);
        at += 2 * LANES;
    }
    if (at < columns) multiply_tile<Way, ROWS, 1>(p, at);
}

// Up to MAX_ROWS rows.
template <class Way>
void multiply(const Product& p, int64_t rows, int64_t columns, Vectors<Way>&) {
    switch (rows) {
        case 1: return multiply_rows<Way, 1>(p, columns);
        case 2: return multiply_rows<Way, 2>(p, columns);
        case 3: return multiply_rows<Way, 3>(p, columns);
        case 4: return multiply_rows<Way, 4>(p, columns);
        case 5: return multiply_rows<Way, 5>(p, columns);
        default: return multiply_rows<Way, Way::MAX_ROWS>(p, columns);
    }
}

}  // namespace
