// Groups of N neighbouring numbers, LANES of them, become N vectors, and the other way round.
#pragma once

#include "common/common.h"

namespace {

// Lane i of the result is the lane Pick::at(i) of a and b, one after the other.
template <class Pick, size_t... LANE>
inline floats pick_lanes(floats a, floats b, std::index_sequence<LANE...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Pick::at(LANE)...);
#else
    const ints lanes = {Pick::at(LANE)...};
    return __builtin_shuffle(a, b, lanes);
#endif
}

// Of the vector FROM those numbers that are the PLACEth of their groups of N.
template <int N, int PLACE, int FROM>
struct Apart {
    static constexpr int at(int lane) {
        const int flat = lane * N + PLACE;
        return flat / LANES == FROM ? LANES + flat % LANES : lane;
    }
};

// For the vector TO the PLACEth numbers of their groups of N.
template <int N, int TO, int PLACE>
struct Together {
    static constexpr int at(int lane) {
        const int flat = TO * LANES + lane;
        return flat % N == PLACE ? LANES + flat / N : lane;
    }
};

template <class... Picks>
struct PickAll {
    // Each of the picks from its own vector of those that lie `stride` apart.
    static floats from(const float* vectors, int64_t stride) {
        floats out = {};
        ((out = pick_lanes<Picks>(out, load(vectors), std::make_index_sequence<LANES>()),
          vectors += stride),
         ...);
        return out;
    }
};

template <int N, int PLACE, size_t... FROM>
inline floats take_apart(const float* from, std::index_sequence<FROM...>) {
    return PickAll<Apart<N, PLACE, int(FROM)>...>::from(from, LANES);
}

template <int N, int TO, size_t... PLACE>
inline floats take_together(const float* from, int64_t stride, std::index_sequence<PLACE...>) {
    return PickAll<Together<N, TO, int(PLACE)>...>::from(from, stride);
}

template <int N, int PLACE = 0>
inline void turn_apart(const float* from, float* to, int64_t stride) {
    if constexpr (PLACE < N) {
        store(to + PLACE * stride, take_apart<N, PLACE>(from, std::make_index_sequence<N>()));
        turn_apart<N, PLACE + 1>(from, to, stride);
    }
}

template <int N, int TO = 0>
inline void turn_together(const float* from, int64_t stride, float* to) {
    if constexpr (TO < N) {
        store(to + TO * LANES, take_together<N, TO>(from, stride, std::make_index_sequence<N>()));
        turn_together<N, TO + 1>(from, stride, to);
    }
}

}  // namespace
