// Vectors of scores that belong to SLOTS rows (1, 2, 4 or 8) at once, for `direct.h`.
//
// Some bytes of a key are repeated over a vector and multiplied by those of every row beside each
// other; what adds up in a row's lanes is one key's score, and sixteen keys are reduced together:
//
//   query lanes   row 0: bytes 0-7 | row 1: bytes 0-7 | ... | row 7: bytes 0-7     (SLOTS = 8)
//   key lanes     bytes 0-7        | bytes 0-7        | ... | bytes 0-7
//
// With fewer slots these are 16 bytes, and where there are fewer than 4 a vector has keys beside
// each other: a score has as many partial sums as `multiply_split` makes of it.
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
    // The lane of a row's score of a key.
    static constexpr int lane(int row, int key) {
        return SLOTS == 8   ? home(row) + key * 2
               : SLOTS == 4 ? row * 4 + key
               : SLOTS == 2 ? row * 4 + key / 4 * 8 + key % 4
                            : key;
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

// Repeats 8 bytes over a vector.
inline floats repeat(const char* from) {
    int64_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return (floats)_mm512_set1_epi64(bytes);
}

inline floats repeat(__m512i first) {
    return (floats)_mm512_broadcastq_epi64(_mm512_castsi512_si128(first));
}

inline floats add_neighbours(floats a, floats b) {
    __m512 x = (__m512)a, y = (__m512)b;
    return (floats)_mm512_shuffle_ps(x, y, 0x88) + (floats)_mm512_shuffle_ps(x, y, 0xdd);
}

// Adds neighbouring lanes up, and these sums LEVELS - 1 times more: of COUNT vectors COUNT / 2 are
// left each time.
template <int LEVELS, int COUNT>
inline void reduce(floats (&sums)[LANES]) {
#pragma GCC unroll 8
    for (int i = 0; i < COUNT / 2; i++) sums[i] = add_neighbours(sums[2 * i], sums[2 * i + 1]);
    if constexpr (LEVELS > 1) reduce<LEVELS - 1, COUNT / 2>(sums);
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
