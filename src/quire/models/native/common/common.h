// What all kernels share: the instruction set they are compiled for, its vectors, bfloat16, threads.
//
// Every .cpp file here is compiled once for each instruction set, with QUIRE_ISA naming it. So that
// the linker never takes one set's code for another's, everything but the exported functions has
// internal linkage, and no code of the C++ library is used.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__)
#define QUIRE_HAS_BF16_DOT 1
#else
#define QUIRE_HAS_BF16_DOT 0
#endif

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define QUIRE_HAS_TILES 1
#else
#define QUIRE_HAS_TILES 0
#endif

#define QUIRE_JOIN_(a, b) a##_##b
#define QUIRE_JOIN(a, b) QUIRE_JOIN_(a, b)
#define QUIRE_TEXT_(a) #a
#define QUIRE_TEXT(a) QUIRE_TEXT_(a)

struct bf16 {
    uint16_t bits;
};

// What crosses the border: structures, and functions whose symbols are NAME_ISA. A function is defined
// as `extern "C"`: then the compiler refuses it where it is not what was declared.
#define QUIRE_STRUCT(name, ...) \
    struct name {               \
        __VA_ARGS__             \
    };
#define QUIRE_FUNCTION(result, name, arguments)                       \
    extern "C" __attribute__((visibility("default"))) result name     \
        arguments __asm__(QUIRE_TEXT(__USER_LABEL_PREFIX__) #name "_" \
                          QUIRE_TEXT(QUIRE_ISA));
#include "common/abi.h"
#undef QUIRE_STRUCT
#undef QUIRE_FUNCTION

// The OpenMP runtime is torch's own, loaded before this library; where there is none, these stay
// null and everything runs on the calling thread.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int64_t LINE = 64;  // bytes of the cache

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

inline void store_as(float* place, float x) { *place = x; }

// To the nearest, ties to even; a NaN stays one.
inline void store_as(bf16* place, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        place->bits = uint16_t(bits >> 16) | 0x40;
    else
        place->bits = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline floats load(const float* place) {
    floats out;
    memcpy(&out, place, sizeof out);
    return out;
}

inline void store(float* place, floats x) { memcpy(place, &x, sizeof x); }

inline floats splat(float x) { return x - floats{}; }

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ratio_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t to) { return ratio_up(a, to) * to; }

// Cache lines taken one after the other; from null, they are only counted.
struct Arena {
    char* base;
    int64_t num_bytes;

    template <class T>
    T* take(int64_t count) {
        char* place = base + num_bytes;
        num_bytes += round_up(count * int64_t(sizeof(T)), 64);
        return (T*)place;
    }
};

// `act(argument)` on up to `num_threads` threads at once, the caller among them.
inline void in_parallel(int64_t num_threads, void (*act)(void*), void* argument) {
    if (num_threads > 1 && GOMP_parallel)
        GOMP_parallel(act, argument, unsigned(num_threads), 0);
    else
        act(argument);
}

}  // namespace
