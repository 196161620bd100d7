// The one matrix product of attention: C[rows, columns] += A[rows, depth] B[depth, columns], where
// an element of A and B is four bytes: a float, or a pair of bfloat16 whose two products are added
// (Dot). B is packed: `depth` rows of `stride` elements. Sums are floats.
#pragma once

#include "common/common.h"

namespace {

#if defined(__AVX512F__)
constexpr int MAX_VECTORS = 4;
constexpr int64_t MAX_SPLIT = 4;  // partial sums of `multiply_split`
#else
constexpr int MAX_VECTORS = 2;
constexpr int64_t MAX_SPLIT = 1;
#endif

// Of a way to multiply whose registers need no preparation.
template <class Way>
struct Vectors {};

struct Fma {
    static constexpr int PER_ELEMENT = 1;
    static constexpr int MAX_ROWS = 6;
    static constexpr bool IS_SHAPED = false;  // for a number of rows, which takes its time
    // Those of a product are multiples of these.
    static constexpr int64_t DEPTH = MAX_SPLIT, COLUMNS = LANES;
    typedef Vectors<Fma> Registers;
    static inline floats add(floats sum, uint32_t a, floats b) {
        float each;
        memcpy(&each, &a, 4);
        return sum + splat(each) * b;
    }
};

#if QUIRE_HAS_BF16_DOT
struct Dot {
    static constexpr int PER_ELEMENT = 2;
    static constexpr int MAX_ROWS = 6;
    static constexpr bool IS_SHAPED = false;
    static constexpr int64_t DEPTH = MAX_SPLIT, COLUMNS = LANES;
    typedef Vectors<Dot> Registers;
    static inline floats add(floats sum, uint32_t a, floats b) {
        return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)b,
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
                sums[i][j] = Way::add(sums[i][j], p.a[i * p.a_stride + k],
                                      load((const float*)b + j * LANES));
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

// Loads vectors of a row of B into registers. Compilers that are not kept from it load them again for
// every row of A.
template <int VECTORS>
inline void load_row(const uint32_t* b, floats (&row)[VECTORS]) {
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        row[j] = load((const float*)b + j * LANES);
#if defined(__AVX512F__)
        __asm__("" : "+v"(row[j]));
#endif
    }
}

// SPLIT partial sums, the i-th of every SPLIT-th element of depth from the i-th on, added up in
// pairs of neighbours: the order in which `score` of direct.h adds.
template <class Way, int SPLIT, int ROWS, int VECTORS>
__attribute__((always_inline)) inline void multiply_split_tile(const Product& p, int64_t column) {
    floats sums[SPLIT][ROWS][VECTORS] = {};
    const uint32_t *a = p.a, *b = p.b + column;
    for (int64_t k = 0; k < p.depth; k += SPLIT)
#pragma GCC unroll 4
        for (int part = 0; part < SPLIT; part++, a++, b += p.b_stride) {
            floats own[VECTORS];
            load_row(b, own);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
                for (int j = 0; j < VECTORS; j++)
                    sums[part][i][j] = Way::add(sums[part][i][j], a[i * p.a_stride], own[j]);
        }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++) {
            floats sum = sums[0][i][j] + sums[1][i][j];
            if constexpr (SPLIT == 4) sum = sum + (sums[2][i][j] + sums[3][i][j]);
            store(p.c + i * p.c_stride + column + j * LANES, sum);
        }
}

template <class Way, int SPLIT, int ROWS>
__attribute__((noinline)) void multiply_split_rows(const Product& p, int64_t columns) {
    int64_t at = 0;
    for (; at + 2 * LANES <= columns; at += 2 * LANES)
        multiply_split_tile<Way, SPLIT, ROWS, 2>(p, at);
    if (at < columns) multiply_split_tile<Way, SPLIT, ROWS, 1>(p, at);
}

// C = A B of up to MAX_ROWS rows by SPLIT partial sums, which registers hold of so many rows.
template <class Way, int SPLIT>
void multiply_split(Product p, int64_t rows, int64_t columns) {
    constexpr int64_t MOST = 12 / SPLIT;
    for (int64_t pieces = ratio_up(rows, MOST); pieces > 0; pieces--) {
        const int64_t count = ratio_up(rows, pieces);
        switch (count) {
            case 1: multiply_split_rows<Way, SPLIT, 1>(p, columns); break;
            case 2: multiply_split_rows<Way, SPLIT, 2>(p, columns); break;
            case 3: multiply_split_rows<Way, SPLIT, 3>(p, columns); break;
            default:
                if constexpr (MOST > 3) {
                    if (count == 4) multiply_split_rows<Way, SPLIT, 4>(p, columns);
                    else if (count == 5) multiply_split_rows<Way, SPLIT, 5>(p, columns);
                    else multiply_split_rows<Way, SPLIT, 6>(p, columns);
                }
        }
        rows -= count;
        p.a += count * p.a_stride;
        p.c += count * p.c_stride;
    }
}

// Multiplies up to MAX_ROWS rows by `split` (1, 2 or 4) partial sums, C zeroed before.
template <class Way>
void multiply_split(const Product& p, int64_t rows, int64_t columns, int64_t split,
                    Vectors<Way>& registers) {
    if constexpr (MAX_SPLIT == 4) {
        if (split == 2) return multiply_split<Way, 2>(p, rows, columns);
        if (split == 4) return multiply_split<Way, 4>(p, rows, columns);
    }
    multiply(p, rows, columns, registers);
}

}  // namespace
