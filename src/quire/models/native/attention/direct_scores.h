// The scores of keys where they lie with the few query heads that share a K/V head.
#pragma once

#include "attention/ahead.h"
#include "attention/lanes.h"

#if QUIRE_HAS_BF16_DOT

namespace {

// `width` elements of every row of a tile, from `first` on, and what to fetch meanwhile, a line for
// every line read.
template <class Stored>
struct Rows {
    const Stored* const* rows;
    int64_t first, width;
    Ahead* ahead;

    Rows from(int64_t row) const { return {rows + row, first, width, ahead}; }
    const Stored* at(int64_t row, int64_t element) const { return rows[row] + first + element; }

    // Returns whether each of `count` rows is as far from the one before it.
    bool are_even(int64_t count) const {
        bool out = true;
        for (int64_t i = 2; i < count; i++) out &= rows[i] - rows[i - 1] == rows[1] - rows[0];
        return out;
    }
};

// Reads 16 bytes of each of the keys that lie side by side in the i-th of 4 * SLOTS vectors, or the
// 2-byte numbers that `mask` says, with zeros after.
template <int SLOTS, class Stored>
inline floats read_keys(const Rows<Stored>& keys, int i, int64_t at, __mmask8 mask) {
    const auto part = [&](int key) {
        return mask == 0xff ? _mm_loadu_si128((const __m128i*)keys.at(key, at))
                            : _mm_maskz_loadu_epi16(mask, keys.at(key, at));
    };
    if constexpr (SLOTS == 4) return (floats)_mm512_broadcast_i32x4(part(i));
    if constexpr (SLOTS == 2) {
        const int key = i / 4 * 8 + i % 4;
        return (floats)_mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(part(key)), 0xff00,
                                                   part(key + 4));
    }
    __m512i out = _mm512_castsi128_si512(part(i));
    out = _mm512_mask_broadcast_i32x4(out, 0x00f0, part(i + 4));
    out = _mm512_mask_broadcast_i32x4(out, 0x0f00, part(i + 8));
    return (floats)_mm512_mask_broadcast_i32x4(out, 0xf000, part(i + 12));
}

// Scores LANES keys with up to 4 rows, as SLOTS vectors.
template <class Way, int SLOTS, class Stored>
__attribute__((noinline)) void score_few(Rows<Stored> keys, const float* queries, float* scores) {
    constexpr int64_t PART = 16 / int64_t(sizeof(Stored));
    constexpr int COUNT = 4 * SLOTS, SIDE = SLOTS == 4 ? 2 : 4;  // a sum waits for its last product
    floats sums[LANES] = {};
    Ahead ahead = *keys.ahead;
    int64_t at = 0;
    for (; at + 4 * PART <= keys.width; at += 4 * PART, queries += 4 * LANES) {
        floats query[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) query[j] = load(queries + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; i += SIDE) {
#pragma GCC unroll 16
            for (int k = 0; k < SIDE * LANES / COUNT; k++) ahead.fetch();
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
                for (int k = i; k < i + SIDE; k++)
                    sums[k] = dot(sums[k], query[j], read_keys<SLOTS>(keys, k, at + j * PART, 0xff),
                                  Way());
        }
    }
    for (; at < keys.width; at += PART, queries += LANES) {
        const int64_t left = smaller(keys.width - at, PART) * int64_t(sizeof(Stored)) / 2;
        const __mmask8 mask = __mmask8((1u << left) - 1);
        const floats query = load(queries);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; i++) {
            if (at % (4 * PART) == 0)
                for (int k = 0; k < LANES / COUNT; k++) ahead.fetch();
            sums[i] = dot(sums[i], query, read_keys<SLOTS>(keys, i, at, mask), Way());
        }
    }
    *keys.ahead = ahead;
    reduce<2, COUNT>(sums);
#pragma GCC unroll 4
    for (int i = 0; i < SLOTS; i++) store(scores + i * LANES, sums[i]);
}

// Scores LANES keys with up to 8 rows, as 8 vectors.
template <class Way, class Stored>
__attribute__((noinline)) void score_many(Rows<Stored> keys, const float* queries, float* scores) {
    constexpr int SLOTS = 8;
    constexpr int64_t PART = 64 / SLOTS / int64_t(sizeof(Stored));
    constexpr int SIDE = 2;  // keys side by side: a sum waits for its last product
    floats sums[LANES] = {};
    Ahead ahead = *keys.ahead;
    int64_t at = 0;
    for (; at + SLOTS * PART <= keys.width; at += SLOTS * PART, queries += SLOTS * LANES) {
        floats query[SLOTS];
#pragma GCC unroll 8
        for (int j = 0; j < SLOTS; j++) query[j] = load(queries + j * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i += SIDE) {
#pragma GCC unroll 4
            for (int k = 0; k < SIDE; k++) ahead.fetch();
#pragma GCC unroll 8
            for (int j = 0; j < SLOTS; j++)
#pragma GCC unroll 4
                for (int k = i; k < i + SIDE; k++)
                    sums[k] = dot(sums[k], query[j],
                                  repeat((const char*)keys.at(k, at + j * PART)), Way());
        }
    }
    for (; at + PART <= keys.width; at += PART, queries += LANES) {
        floats query = load(queries);
#pragma GCC unroll 16
        for (int i = 0; i < LANES / SLOTS; i++) ahead.fetch();
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            sums[i] = dot(sums[i], query, repeat((const char*)keys.at(i, at)), Way());
    }
    if (at < keys.width) {
        __mmask32 mask = (1u << (keys.width - at) * int64_t(sizeof(Stored)) / 2) - 1;
        floats query = load(queries);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            ahead.fetch();
            __m512i part = _mm512_maskz_loadu_epi16(mask, keys.at(i, at));
            sums[i] = dot(sums[i], query, repeat(part), Way());
        }
    }
    *keys.ahead = ahead;
    reduce<1, LANES>(sums);
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++) store(scores + i * LANES, sums[i]);
}

constexpr int SIDE = 8;

// Does the same as `score_many`, SIDE keys side by side, so that more sums need not wait for each
// other: with fewer rows memory is waited for, which gives one key after the other faster. Each half
// of the keys is even, and their width a multiple of SIDE parts.
template <class Way, class Stored>
__attribute__((noinline)) void score_even(Rows<Stored> keys, const float* queries, float* scores) {
    constexpr int SLOTS = 8;
    constexpr int64_t PART = 64 / SLOTS / int64_t(sizeof(Stored));
    floats sums[LANES] = {};
    Ahead ahead = *keys.ahead;
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += SIDE) {
        const Stored* from = keys.at(i, 0);
        const int64_t stride = keys.rows[i + 1] - keys.rows[i];
        const float* query = queries;
#pragma GCC unroll 1
        for (int64_t at = 0; at < keys.width; at += SIDE * PART)
#pragma GCC unroll 8
            for (int j = 0; j < SIDE; j++, from += PART, query += LANES) {
                const floats part = load(query);
                ahead.fetch();
#pragma GCC unroll 8
                for (int k = 0; k < SIDE; k++)
                    sums[i + k] = dot(sums[i + k], part,
                                      repeat((const char*)(from + k * stride)), Way());
            }
    }
    *keys.ahead = ahead;
    reduce<1, LANES>(sums);
#pragma GCC unroll 8
    for (int i = 0; i < SLOTS; i++) store(scores + i * LANES, sums[i]);
}

}  // namespace

#endif
