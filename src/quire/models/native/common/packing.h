// Keys and values of one tile laid out for the product: keys turned on their side, values side by
// side, bfloat16 in pairs for Dot and widened for Fma. What pads them is zero, so that no number
// left in memory, not even a NaN, gets into a sum.
#pragma once

#include "common/products.h"

namespace {

constexpr int TILE = 64;  // keys

// The first `count` <= LANES elements as four-byte elements, zeros after.
inline ints widen(const float* row, int64_t count, Fma) {
    ints out = {};
    memcpy(&out, row, size_t(count) * 4);
    return out;
}

inline ints widen(const bf16* row, int64_t count, Fma) {
    uint16_t half[LANES] = {};
    memcpy(half, row, size_t(count) * 2);
    ints out;
    for (int i = 0; i < LANES; i++) out[i] = int32_t(uint32_t(half[i]) << 16);
    return out;
}

#if QUIRE_HAS_BF16_DOT
inline __m512i load_halves(const bf16* row, int64_t count) {
    __mmask32 mask = count >= 32 ? 0xffffffffu : (1u << count) - 1;
    return _mm512_maskz_loadu_epi16(mask, row);
}

inline ints widen(const bf16* row, int64_t count, Dot) { return (ints)load_halves(row, count); }
#endif

template <int STEP, size_t... LANE>
inline void swap_blocks(ints& a, ints& b, std::index_sequence<LANE...>) {
#if defined(__clang__)
    ints low = __builtin_shufflevector(a, b, ((LANE & STEP) ? LANES + LANE - STEP : LANE)...);
    b = __builtin_shufflevector(a, b, ((LANE & STEP) ? LANES + LANE : LANE + STEP)...);
#else
    const ints lows = {int((LANE & STEP) ? LANES + LANE - STEP : LANE)...};
    const ints highs = {int((LANE & STEP) ? LANES + LANE : LANE + STEP)...};
    ints low = __builtin_shuffle(a, b, lows);
    b = __builtin_shuffle(a, b, highs);
#endif
    a = low;
}

template <int STEP>
inline void transpose_from(ints (&rows)[LANES]) {
    if constexpr (STEP < LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & STEP))
                swap_blocks<STEP>(rows[i], rows[i + STEP], std::make_index_sequence<LANES>());
        transpose_from<2 * STEP>(rows);
    }
}

// `count` keys, of which `rows[i]` is the i-th, into packed[width / PER_ELEMENT, TILE], with zeros up
// to a multiple of DEPTH.
template <class Way, class Stored>
__attribute__((noinline)) void pack_keys(const Stored* const* rows, int64_t count, int64_t width,
                                         uint32_t* packed) {
    constexpr int64_t STEP = LANES * Way::PER_ELEMENT;
    int64_t depth = (width + Way::PER_ELEMENT - 1) / Way::PER_ELEMENT;
    for (int64_t key = 0; key < TILE; key += LANES)
        for (int64_t at = 0; at < depth; at += LANES) {
            int64_t element = at * Way::PER_ELEMENT;
            ints block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                block[i] = key + i < count ? widen(rows[key + i] + element,
                                                   smaller(STEP, width - element), Way())
                                           : ints{};
            transpose_from<1>(block);
            uint32_t* place = packed + at * TILE + key;
            if (at + LANES <= depth) {
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) memcpy(place + i * TILE, &block[i], sizeof(ints));
            } else {
                for (int i = 0; i < depth - at; i++)
                    memcpy(place + i * TILE, &block[i], sizeof(ints));
            }
        }
    memset(packed + depth * TILE, 0, size_t(round_up(depth, Way::DEPTH) - depth) * TILE * 4);
}

// `count` values into packed[TILE, stride], float by float. Calls `fetch` before each.
template <class Stored, class Fetch>
void pack_values(const Stored* const* rows, int64_t count, int64_t width, uint32_t* packed,
                 int64_t stride, Fma, Fetch fetch) {
    for (int64_t key = 0; key < TILE; key++) {
        fetch();
        for (int64_t at = 0; at < stride; at += LANES) {
            ints out = {};
            if (key < count) out = widen(rows[key] + at, smaller(LANES, width - at), Fma());
            memcpy(packed + key * stride + at, &out, sizeof out);
        }
    }
}

#if QUIRE_HAS_BF16_DOT
alignas(64) const uint16_t INTERLEAVE[32] = {
    0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};

// Into packed[TILE / 2, stride]: an element holds two keys' values. Calls `fetch` before each pair.
template <class Fetch>
__attribute__((noinline)) void pack_values(const bf16* const* rows, int64_t count, int64_t width,
                                           uint32_t* packed, int64_t stride, Dot, Fetch fetch) {
    const __m512i lows = _mm512_load_si512(INTERLEAVE);
    const __m512i highs = _mm512_add_epi16(lows, _mm512_set1_epi16(16));
    for (int64_t key = 0; key < TILE; key += 2) {
        fetch();
        for (int64_t at = 0; at < stride; at += 32) {
            int64_t here = larger(smaller(32, width - at), 0);
            __m512i a = {}, b = {};
            if (key < count) a = load_halves(rows[key] + at, here);
            if (key + 1 < count) b = load_halves(rows[key + 1] + at, here);
            uint32_t* place = packed + key / 2 * stride + at;
            _mm512_storeu_si512(place, _mm512_permutex2var_epi16(a, lows, b));
            if (at + 16 < stride)
                _mm512_storeu_si512(place + 16, _mm512_permutex2var_epi16(a, highs, b));
        }
    }
}
#endif

}  // namespace
