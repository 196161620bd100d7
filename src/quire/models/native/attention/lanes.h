// Vectors of scores that belong to SLOTS rows (1, 2, 4 or 8) at once, for `direct.h`.
//
// 64 / SLOTS bytes of a key are repeated over a vector and multiplied by those of every row beside
// each other; what adds up in a row's lanes is one key's score, and sixteen keys are reduced
// together:
//
//   query lanes   row 0: bytes 0-7 | row 1: bytes 0-7 | ... | row 7: bytes 0-7     (SLOTS = 8)
//   key lanes     bytes 0-7        | bytes 0-7        | ... | bytes 0-7
#pragma once

#include "attention/plan.h"

#if QUIRE_HAS_BF16_DOT

namespace {

// Returns into how many parts a vector is divided for so many rows.
constexpr int slots_of(int64_t rows) { return rows > 4 ? 8 : rows > 2 ? 4 : int(rows); }

inline floats dot(floats sum, floats a, floats b, Fma) { return sum + a * b; }
inline floats dot(floats sum, floats a, floats b, Dot) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// Says which row and which key the score in a lane belongs to, in the i-th vector of a group of
// LANES keys. A row has LANES / SLOTS lanes there.
template <int SLOTS>
struct Lanes {
    static constexpr int KEYS = LANES / SLOTS;
    static constexpr int row(int lane) {
        return SLOTS == 8 ? lane / 4 * 2 + lane % 2 : SLOTS == 1 ? 0 : lane / 4 % SLOTS;
    }
    static constexpr int key(int lane) {
        return SLOTS == 8   ? lane % 4 / 2
               : SLOTS == 4 ? lane % 4
               : SLOTS == 2 ? lane / 8 * 4 + lane % 4
                            : lane;
    }
    // The first lane of a row.
    static constexpr int home(int row) {
        return SLOTS == 8 ? row % 8 / 2 * 4 + row % 2 : row % SLOTS * 4;
    }
    // The place of the weight of a row and of the i-th of STEP_KEYS keys, or of keys i and i + 1 in
    // Dot's pairs, among the STEP_KEYS * SLOTS weights of these keys.
    static constexpr int place(int row, int i, Fma) {
        return SLOTS == 8 ? i / 2 * 16 + home(row) + i % 2 * 2 : row * 4 + i;
    }
    static constexpr int place(int row, int i, Dot) {
        return SLOTS == 8 ? i / 2 * 8 + row : row * 2 + i / 2;
    }
};

struct Table {
    int32_t lanes[LANES];
    operator ints() const {
        ints out;
        memcpy(&out, lanes, sizeof out);
        return out;
    }
};

template <class Act>
constexpr Table tabulate(Act act) {
    Table out{};
    for (int lane = 0; lane < LANES; lane++) out.lanes[lane] = act(lane);
    return out;
}

inline floats permute(floats x, ints lanes) {
    return (floats)_mm512_permutexvar_ps((__m512i)lanes, (__m512)x);
}

// Repeats 64 / SLOTS bytes in every one of SLOTS places.
template <int SLOTS>
inline floats repeat(__m512i first) {
    if constexpr (SLOTS == 8) return (floats)_mm512_broadcastq_epi64(_mm512_castsi512_si128(first));
    if constexpr (SLOTS == 4)
        return (floats)_mm512_broadcast_i32x4(_mm512_castsi512_si128(first));
    if constexpr (SLOTS == 2)
        return (floats)_mm512_broadcast_i64x4(_mm512_castsi512_si256(first));
    return (floats)first;
}

template <int SLOTS>
inline floats repeat(const char* from) {
    if constexpr (SLOTS == 8) {
        int64_t bytes;
        memcpy(&bytes, from, sizeof bytes);
        return (floats)_mm512_set1_epi64(bytes);
    }
    if constexpr (SLOTS == 4)
        return (floats)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from));
    if constexpr (SLOTS == 2)
        return (floats)_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)from));
    return (floats)_mm512_loadu_si512(from);
}

template <int LEVEL>
inline floats add_neighbours(floats a, floats b) {
    __m512 x = (__m512)a, y = (__m512)b;
    if constexpr (LEVEL < 2)
        return (floats)_mm512_shuffle_ps(x, y, 0x88) + (floats)_mm512_shuffle_ps(x, y, 0xdd);
    return (floats)_mm512_shuffle_f32x4(x, y, 0x88) + (floats)_mm512_shuffle_f32x4(x, y, 0xdd);
}

// Reduces the sums of LANES keys to SLOTS vectors of scores, which are the first of `sums`.
template <int SLOTS, int LEVEL = 0>
inline void reduce(floats (&sums)[LANES]) {
    constexpr int COUNT = LANES >> (LEVEL + 1);
    if constexpr (COUNT >= SLOTS) {
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; i++)
            sums[i] = add_neighbours<LEVEL>(sums[2 * i], sums[2 * i + 1]);
        reduce<SLOTS, LEVEL + 1>(sums);
    }
}

// Returns 2^x within 3e-7 of it, and exactly 1 at 0, for x <= 127: a minimax polynomial between
// whole powers.
inline floats power(floats x, Fma) {
    floats rest = (floats)_mm512_reduce_ps((__m512)x, 0x09);  // x - floor(x)
    floats y = rest * 1.877576592e-3f + 8.989340632e-3f;
    y = y * rest + 5.582631723e-2f;
    y = y * rest + 2.401536175e-1f;
    y = y * rest + 6.931530731e-1f;
    y = y * rest + 1.0f;
    return (floats)_mm512_scalef_ps((__m512)y, (__m512)x);
}

// Returns 2^x within 1e-4, for weights that become bfloat16, and 0 below 2^-126.
inline floats power(floats x, Dot) {
    floats shifted = x + TO_INTEGER;
    floats rest = x - (shifted - TO_INTEGER);
    floats y = rest * 5.500895124e-2f + 2.422110097e-1f;
    y = y * rest + 6.932829305e-1f;
    y = y * rest + 1.0f;
    __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_GE_OQ);
    return (floats)_mm512_maskz_add_epi32(is_normal, (__m512i)y, _mm512_slli_epi32((__m512i)shifted, 23));
}

// Combines the lanes of each row, by an operation such as a sum, in all of them.
template <int SLOTS, int STEP, class Act>
inline floats combine(floats x, Act act) {
    if constexpr (STEP < LANES) {
        if constexpr (Lanes<SLOTS>::row(STEP) == 0) {
            static constexpr Table OTHER = tabulate([](int lane) { return lane ^ STEP; });
            x = act(x, permute(x, OTHER));
        }
        return combine<SLOTS, 2 * STEP>(x, act);
    }
    return x;
}

}  // namespace

#endif
