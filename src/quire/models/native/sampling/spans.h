// One row of logits in fp32, cut in spans of neighbouring ids, each with its maximum.
#pragma once

#include "sampling/ranks.h"

namespace {

constexpr int64_t SPAN = 128;
constexpr int SPAN_VECTORS = SPAN / LANES;
constexpr int TICK_BITS = 23;  // the likeliest token of a span weighs 2^23: their sum fits 31 bits
constexpr int SUM_BITS = 52;   // the weights of a row sum to less than 2^52, exact in fp64

typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

inline floats read(const float* place) { return load(place); }

inline floats read(const bf16* place) {
    halves bits;
    memcpy(&bits, place, sizeof bits);
    return (floats)(__builtin_convertvector(bits, ints) << 16);
}

#if defined(__AVX512F__)
inline int32_t total(ints x) { return _mm512_reduce_add_epi32((__m512i)x); }
inline bool any(ints x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }
#else
inline int32_t total(ints x) {
    int32_t out = 0;
    for (int i = 0; i < LANES; i++) out += x[i];
    return out;
}

inline bool any(ints x) {
    int32_t out = 0;
    for (int i = 0; i < LANES; i++) out |= x[i];
    return out != 0;
}
#endif

// The maximum of a span, which is also kept as fp32 if there is a place; NaN and +inf are reported.
template <class Stored>
inline float read_span(const Stored* span, float* kept, ints* not_finite) {
    floats top = splat(-INFINITE);
#pragma GCC unroll 4
    for (int i = 0; i < SPAN_VECTORS; i++) {
        floats x = read(span + i * LANES);
        if (kept) store(kept + i * LANES, x);
        top = choose(x > top, x, top);
        *not_finite |= ~(ints)(x < INFINITE);
    }
    return largest(top);
}

// The last span filled up.
template <class Stored>
inline void fill_up(const Stored* logits, int64_t count, float* span) {
    for (int64_t i = 0; i < SPAN; i++) span[i] = i < count ? to_float(logits[i]) : -INFINITE;
}

// The lowest id of the largest logit; -1 where one is NaN or +inf, or none is more than -inf.
template <class Stored>
int64_t likeliest(const Stored* logits, int64_t vocab_size) {
    int64_t whole = vocab_size / SPAN * SPAN, found = -1;
    float best = -INFINITE, last[SPAN];
    ints not_finite = {};
    for (int64_t first = 0; first < whole; first += SPAN) {
        float top = read_span(logits + first, nullptr, &not_finite);
        if (top > best) best = top, found = first;
    }
    if (whole < vocab_size) {
        fill_up(logits + whole, vocab_size - whole, last);
        float top = read_span(last, nullptr, &not_finite);
        if (top > best) best = top, found = whole;
    }
    if (found < 0 || any(not_finite)) return -1;
    while (to_float(logits[found]) != best) found++;
    return found;
}

// exp(x / temperature) of x <= 0; what is below any weight, and NaN, is 0.
inline floats likelihood(floats x, float temperature) {
    if (temperature != 1.0f) x = x / temperature;
    return exponential(choose(x > -88.0f, x, splat(-88.0f)));
}

// A span of nothing but -inf still has something to subtract.
inline float finite(float top) { return top == -INFINITE ? -__FLT_MAX__ : top; }

// Weights of a span's lanes under its own `top`.
inline ints ticks_of(floats x, float top, float temperature) {
    return __builtin_convertvector(likelihood(x - top, temperature) * float(1 << TICK_BITS) + 0.5f, ints);
}

// The words of a row's mask: bit i of word w is token 32 w + i.
constexpr int64_t WORD_BITS = 32;
inline int64_t mask_words(int64_t vocab_size) { return (vocab_size + WORD_BITS - 1) / WORD_BITS; }

// All bits of the lanes whose bits of `word` are set, from the lowest on.
inline ints lanes_set(uint32_t word) {
    ints bits;
    for (int i = 0; i < LANES; i++) bits[i] = 1 << i;
    return (bits & int32_t(word)) != 0;
}

struct Row {
    int64_t vocab_size, num_spans;
    float* logits;    // [num_spans, SPAN], filled up with -inf
    float* maxima;    // [num_spans]
    int64_t* sums;    // [num_spans], the weights of each
    uint32_t* ids;    // of some tokens, rising
    Tokens among;     // their keys and weights
    Tokens spare;
    float peak;
    bool is_finite;  // no NaN, no +inf, something more than -inf

    // In bytes. Each array has room for some vectors more.
    static int64_t memory(int64_t vocab_size) {
        int64_t rounded = round_up((vocab_size + SPAN - 1) / SPAN, 16) + 16;
        return rounded * (SPAN * (8 + 8 + 4 * 4) + 8 + 4);
    }

    Row(int64_t vocab_size, char* memory)
        : vocab_size(vocab_size), num_spans((vocab_size + SPAN - 1) / SPAN) {
        int64_t rounded = round_up(num_spans, 16) + 16;
        among.weights = (int64_t*)memory;
        spare.weights = among.weights + rounded * SPAN;
        sums = spare.weights + rounded * SPAN;
        among.keys = (uint32_t*)(sums + rounded);
        spare.keys = among.keys + rounded * SPAN;
        ids = spare.keys + rounded * SPAN;
        logits = (float*)(ids + rounded * SPAN);
        maxima = logits + rounded * SPAN;
    }

    template <class Stored>
    void take(const Stored* source) {
        ints not_finite = {};
        int64_t whole = vocab_size / SPAN;
        for (int64_t i = 0; i < whole; i++)
            maxima[i] = read_span(source + i * SPAN, logits + i * SPAN, &not_finite);
        if (whole < num_spans) {
            float* last = logits + whole * SPAN;
            fill_up(source + whole * SPAN, vocab_size - whole * SPAN, last);
            maxima[whole] = read_span(last, nullptr, &not_finite);
        }
        is_finite = !any(not_finite);
        find_peak();
    }

    void edit(const int64_t* ids, const float* values, int64_t count) {
        ints not_finite = {};
        for (int64_t i = 0; i < count; i++) logits[ids[i]] = values[i];
        for (int64_t i = 0; i < count; i++) {
            int64_t span = ids[i] / SPAN;
            maxima[span] = read_span(logits + span * SPAN, nullptr, &not_finite);
        }
        is_finite = is_finite && !any(not_finite);
        find_peak();
    }

    // Bans the tokens whose bits are not set. What is not finite was found when the row was taken.
    void mask(const uint32_t* words) {
        for (int64_t i = 0; i < num_spans; i++) {
            floats top = splat(-INFINITE);
            for (int64_t first = i * SPAN; first < (i + 1) * SPAN; first += LANES) {
                if (first >= vocab_size) break;
                uint32_t word = words[first / WORD_BITS] >> (first % WORD_BITS);
                floats x = load(logits + first);
                x = choose(lanes_set(word), x, splat(-INFINITE));
                store(logits + first, x);
                top = choose(x > top, x, top);
            }
            maxima[i] = largest(top);
        }
        find_peak();
    }

    void find_peak() {
        peak = -INFINITE;
        for (int64_t i = 0; i < num_spans; i++) peak = maxima[i] > peak ? maxima[i] : peak;
        is_finite = is_finite && peak > -INFINITE;
    }

    // The weight of the likeliest token.
    double unit() const {
        int bits = 64 - __builtin_clzll(uint64_t(num_spans * SPAN));
        return double(int64_t(1) << (SUM_BITS - bits));
    }

    // Fills `sums` and returns theirs.
    int64_t weigh_spans(float temperature) {
        double tick = unit() / double(1 << TICK_BITS);
        int64_t all = 0;
        for (int64_t i = 0; i < num_spans; i++) {
            const float* span = logits + i * SPAN;
            float top = finite(maxima[i]);
            ints ticks = {};
#pragma GCC unroll 4
            for (int k = 0; k < SPAN_VECTORS; k++)
                ticks += ticks_of(load(span + k * LANES), top, temperature);
            float scale = likelihood(splat(top - peak), temperature)[0];
            sums[i] = int64_t(double(total(ticks)) * double(scale) * tick);
            all += sums[i];
        }
        return all;
    }

    // A logit that at least `rank` tokens reach and not many more: the maximum of so many spans
    // where there are enough, else the logit of that rank.
    float least_of_top(int64_t rank) {
        if (rank >= vocab_size) return -INFINITE;
        if (rank <= num_spans * 3 / 4) return ranked(maxima, num_spans, rank, spare.keys);
        return ranked(logits, vocab_size, rank, spare.keys);
    }

    // The tokens with logits of at least `least`, and their keys.
    void collect(float least) {
        int64_t count = 0;
        for (int64_t i = 0; i < num_spans; i++) {
            if (!(maxima[i] >= least)) continue;
            int64_t first = i * SPAN, end = smaller(first + SPAN, vocab_size);
            for (int64_t id = first; id < end; id += LANES)
                count += collect_vector(id, least, count);
            // The fill of the last span is -inf too.
            while (count > 0 && ids[count - 1] >= vocab_size) count--;
        }
        among.count = count;
    }

    int64_t collect_vector(int64_t first, float least, int64_t place) {
        floats x = load(logits + first);
        ints keys = keys_of(x);
#if defined(__AVX512F__)
        __mmask16 mask = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_GE_OQ);
        const __m512i lanes =
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        __m512i own = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(first)));
        _mm512_storeu_si512(ids + place, _mm512_maskz_compress_epi32(mask, own));
        _mm512_storeu_si512(among.keys + place,
                            _mm512_maskz_compress_epi32(mask, (__m512i)keys));
        return __builtin_popcount(mask);
#else
        int64_t count = 0;
        for (int i = 0; i < LANES; i++) {
            ids[place + count] = uint32_t(first + i);
            among.keys[place + count] = uint32_t(keys[i]);
            count += x[i] >= least;
        }
        return count;
#endif
    }

    void weigh(floats x, float temperature, int64_t* weights) const {
        floats scaled = likelihood(x - peak, temperature) * float(unit());
        longs whole = __builtin_convertvector(scaled, longs);
        memcpy(weights, &whole, sizeof whole);
    }

    // Fills the weights of what was collected and returns their sum.
    int64_t weigh(float temperature) {
        int64_t all = 0;
        for (int64_t i = 0; i < among.count; i += LANES) {
            ints keys;
            memcpy(&keys, among.keys + i, sizeof keys);
            weigh(values_of(keys), temperature, among.weights + i);
        }
        for (int64_t i = 0; i < among.count; i++) all += among.weights[i];
        return all;
    }
};

}  // namespace
