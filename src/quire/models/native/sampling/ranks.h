// Tokens by rank: falling logit, equal ones by rising id. Samples by inverse CDF in order of id.
#pragma once

#include "common/softmax.h"

namespace {

typedef int64_t longs __attribute__((vector_size(LANES * 8)));

// Larger floats, smaller keys; the two zeros are one. Of NaN: anything.
inline ints keys_of(floats x) {
    ints bits = (ints)(0.0f - x);
    return bits ^ ((bits >> 31) | int32_t(0x80000000));
}

inline floats values_of(ints keys) {
    return 0.0f - (floats)(keys ^ (int32_t(0x80000000) | ~(keys >> 31)));
}

// Some tokens, each array with room for one more and a vector; null weights are all 1.
struct Tokens {
    uint32_t* keys;
    int64_t* weights;
    int64_t count;
};

// Ahead of some token of the key `key` there is a weight of `before`, all of it of smaller keys.
struct Cut {
    uint32_t key;
    int64_t before;
};

// One digit more of the key, and to `spare` the tokens that have it; which may be the same arrays.
template <bool IS_WEIGHED>
void refine(const Tokens& tokens, int shift, double target, Cut* cut, Tokens* spare) {
    int64_t sums[4][256] = {};  // side by side: one waits for its own last sum
    for (int64_t i = 0; i < tokens.count; i++)
        sums[i & 3][tokens.keys[i] >> shift & 255] += IS_WEIGHED ? tokens.weights[i] : 1;
    uint32_t digit = 0;
    for (;; digit++) {
        int64_t sum = sums[0][digit] + sums[1][digit] + sums[2][digit] + sums[3][digit];
        if (digit == 255 || double(cut->before + sum) >= target) break;
        cut->before += sum;
    }
    cut->key |= digit << shift;
    int64_t count = 0;
    for (int64_t i = 0; i < tokens.count; i++) {
        uint32_t key = tokens.keys[i];
        spare->keys[count] = key;
        if (IS_WEIGHED) spare->weights[count] = tokens.weights[i];
        count += (key >> shift & 255) == digit;
    }
    spare->count = count;
}

// Where the leading tokens end that have less than `target` > 0 ahead of them. Whole numbers: exact
// in any order.
inline Cut find_cut(const Tokens& tokens, double target, Tokens spare) {
    Cut cut = {0, 0};
    const Tokens* left = &tokens;
    for (int shift = 24; shift >= 0; shift -= 8, left = &spare) {
        if (tokens.weights)
            refine<true>(*left, shift, target, &cut, &spare);
        else
            refine<false>(*left, shift, target, &cut, &spare);
    }
    return cut;
}

// Zero the weights of all but the leading tokens: so many, or so much weight.
inline void keep_leading(const Tokens& tokens, bool by_count, double target, Tokens spare) {
    Tokens counted = {tokens.keys, by_count ? nullptr : tokens.weights, tokens.count};
    Cut cut = find_cut(counted, target, spare);
    for (int64_t i = 0; i < tokens.count; i++)
        tokens.weights[i] = tokens.keys[i] > cut.key ? 0 : tokens.weights[i];
    for (int64_t i = 0; i < tokens.count; i++) {
        if (tokens.keys[i] != cut.key) continue;
        int64_t own = by_count ? 1 : tokens.weights[i];
        if (double(cut.before) >= target) tokens.weights[i] = 0;
        cut.before += own;
    }
}

// The `rank`th largest of floats, counted from 1. `keys` has room for as many and a vector more.
inline float ranked(const float* values, int64_t count, int64_t rank, uint32_t* keys) {
    for (int64_t i = 0; i < count; i += LANES) {
        ints found = keys_of(load(values + i));
        memcpy(keys + i, &found, sizeof found);
    }
    Tokens tokens = {keys, nullptr, count};
    Cut cut = find_cut(tokens, double(rank), tokens);
    return values_of(ints{} + int32_t(cut.key))[0];
}

// By the upper half, a digit at a time; equal ones stay in order. `other` has room for as many.
inline void sort_by_upper(uint64_t* items, uint64_t* other, int64_t count) {
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t places[256] = {}, sum = 0;
        for (int64_t i = 0; i < count; i++) places[items[i] >> shift & 255]++;
        for (int64_t& place : places) {
            int64_t own = place;
            place = sum;
            sum += own;
        }
        for (int64_t i = 0; i < count; i++) other[places[items[i] >> shift & 255]++] = items[i];
        uint64_t* sorted = other;
        other = items;
        items = sorted;
    }
}

// `rest`: how far into the picked weight the noise reaches, again of [0, 1).
struct Picked {
    int64_t place;
    double rest;
};

// Inverse CDF at `noise` of [0, 1).
template <class Weight>
Picked pick(const Weight* weights, int64_t count, double noise) {
    int64_t total = 0, sum = 0, place = 0;
    for (int64_t i = 0; i < count; i++) total += weights[i];
    double point = noise * double(total);
    if (point > double(total - 1)) point = double(total - 1);
    int64_t whole = int64_t(point);
    while (place < count - 1 && sum + weights[place] <= whole) sum += weights[place++];
    return {place, (point - double(sum)) / double(weights[place])};
}

}  // namespace
