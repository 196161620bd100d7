// Chooses the integers, scales and offsets of a weight whose numbers are floats.
//
// In four bits W is about offset + scale * nibble. Nibbles are first spread over the range of a group,
// or a wider or narrower one; scale and offset are then those of least squares for them, in halves, and
// the nibbles the nearest for these. The range with the least error is taken. Errors count by the size
// of their number and the mean size of the group's: what is large decides more. In eight bits the
// largest number of a group is 127, or the nearest half.
#pragma once

#include "common/scale.h"

namespace {

constexpr int64_t MAX_GROUP = 32;  // columns
constexpr float RANGES[] = {15, 14.4f, 13.8f, 13.2f, 12.6f, 15.5f, 16};  // in steps of a nibble
constexpr float HIGHEST = 15;
constexpr int64_t SUMS = 8;  // side by side

// The nearest half to a number, ties to even; beyond the largest an infinity.
inline uint16_t to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return sign | 0x7e00;
    if (bits >= 0x477ff000u) return sign | 0x7c00;
    float size;
    memcpy(&size, &bits, 4);
    if (bits < 0x38800000u) return sign | uint16_t(__builtin_irintf(size * 0x1p24f));
    return sign | uint16_t((bits - 0x38000000u + 0xfff + (bits >> 13 & 1)) >> 13);
}

inline float of_half(uint16_t half) {
    const uint32_t size = half & 0x7fff;
    float out;
    uint32_t bits = size << 13;
    memcpy(&out, &bits, 4);
    out *= 0x1p112f;
    if (size >= 0x7c00) out = size > 0x7c00 ? __builtin_nanf("") : __builtin_inff();
    return half & 0x8000 ? -out : out;
}

// The sum of a term for each of `count` numbers, a multiple of SUMS: the same on every machine.
template <class Term>
inline float sum_of(int64_t count, Term term) {
    float sums[SUMS] = {};
    for (int64_t i = 0; i < count; i += SUMS)
        for (int64_t j = 0; j < SUMS; j++) sums[j] += term(i + j);
    for (int64_t half = SUMS / 2; half > 0; half /= 2)
        for (int64_t j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

// The numbers of a group, and how much an error in each counts.
struct Group {
    float numbers[MAX_GROUP], weights[MAX_GROUP];
    int64_t count;
    float lowest, highest;

    Group(const float* from, int64_t count) : count(count), lowest(from[0]), highest(from[0]) {
        const float sum = sum_of(count, [&](int64_t i) { return __builtin_fabsf(from[i]); });
        for (int64_t i = 0; i < count; i++) {
            numbers[i] = from[i];
            weights[i] = __builtin_fabsf(from[i]) + sum / float(count);
            lowest = from[i] < lowest ? from[i] : lowest;
            highest = from[i] > highest ? from[i] : highest;
        }
    }
};

struct Affine {
    float scale, offset;

    Affine in_halves() const { return {of_half(to_half(scale)), of_half(to_half(offset))}; }
};

// The nearest nibbles, as floats.
inline void nearest(const Group& g, Affine by, float* nibbles) {
    const float inverse = by.scale > 0 ? 1 / by.scale : 0;
    for (int64_t i = 0; i < g.count; i++) {
        const float steps = __builtin_rintf((g.numbers[i] - by.offset) * inverse);
        const float above = steps > 0 ? steps : 0;
        nibbles[i] = above < HIGHEST ? above : HIGHEST;
    }
}

inline float error_of(const Group& g, Affine by, const float* nibbles) {
    return sum_of(g.count, [&](int64_t i) {
        const float off = nibbles[i] * by.scale + by.offset - g.numbers[i];
        return g.weights[i] * off * off;
    });
}

// Least squares for these nibbles.
inline Affine fitted(const Group& g, const float* nibbles, Affine otherwise) {
    const float* by = g.weights;
    const float w = sum_of(g.count, [&](int64_t i) { return by[i]; });
    const float n = sum_of(g.count, [&](int64_t i) { return by[i] * nibbles[i]; });
    const float nn = sum_of(g.count, [&](int64_t i) { return by[i] * nibbles[i] * nibbles[i]; });
    const float x = sum_of(g.count, [&](int64_t i) { return by[i] * g.numbers[i]; });
    const float xn = sum_of(g.count, [&](int64_t i) { return by[i] * nibbles[i] * g.numbers[i]; });
    const float determinant = w * nn - n * n;
    if (!(determinant > 0)) return otherwise;
    const float scale = (w * xn - n * x) / determinant;
    return scale > 0 ? Affine{scale, (x - n * scale) / w} : otherwise;
}

inline Affine group_nibbles(const Group& g, int8_t* numbers) {
    float nibbles[MAX_GROUP], best_nibbles[MAX_GROUP];
    const float range = g.highest - g.lowest;
    Affine best = Affine{range / HIGHEST, g.lowest}.in_halves();
    nearest(g, best, best_nibbles);
    float least = error_of(g, best, best_nibbles);
    for (float num_steps : RANGES) {
        const Affine spread{range / num_steps, g.lowest};
        nearest(g, spread, nibbles);
        const Affine tried = fitted(g, nibbles, spread).in_halves();
        nearest(g, tried, nibbles);
        const float error = error_of(g, tried, nibbles);
        if (!(error < least)) continue;
        least = error;
        best = tried;
        memcpy(best_nibbles, nibbles, sizeof nibbles);
    }
    for (int64_t i = 0; i < g.count; i++) numbers[i] = int8_t(best_nibbles[i]);
    return best;
}

inline Affine group_bytes(const Group& g, int8_t* numbers) {
    const float largest = g.highest > -g.lowest ? g.highest : -g.lowest;
    const Affine by = Affine{largest / LARGEST, 0}.in_halves();
    const float inverse = by.scale > 0 ? 1 / by.scale : 0;
    for (int64_t i = 0; i < g.count; i++) {
        const float steps = __builtin_rintf(g.numbers[i] * inverse);
        numbers[i] = int8_t(steps > LARGEST ? LARGEST : steps < -LARGEST ? -LARGEST : steps);
    }
    return by;
}

}  // namespace
