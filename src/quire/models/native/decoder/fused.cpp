// What a decoder layer does between its linear layers, in rows of floats or bfloat16: normalisation
// (with the residual sum before it), rotary embedding of query and key heads, and the gate of an MLP.
// Numbers are computed in floats and rounded where transformers rounds them last. Every row is
// computed by itself, so that it is the same alone and in company.
//
// bfloat16 only where its linear layers are: see compressed_bf16.cpp.
#include "recurrent/functions.h"

namespace {

constexpr int64_t MIN_PARALLEL = 1 << 15;  // elements
constexpr int64_t MAX_HEAD = 512;

inline floats take(const float* place, int64_t count) {
    if (count >= LANES) return load(place);
    floats out = {};
    memcpy(&out, place, size_t(count) * sizeof(float));
    return out;
}

inline void put(float* place, floats x, int64_t count) {
    memcpy(place, &x, size_t(smaller(count, LANES)) * sizeof(float));
}

#if QUIRE_HAS_BF16_DOT
inline __mmask16 lanes(int64_t count) {
    return count >= LANES ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
}

inline floats take(const bf16* place, int64_t count) {
    __m256i halves = _mm256_maskz_loadu_epi16(lanes(count), place);
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

inline void put(bf16* place, floats x, int64_t count) {
    _mm256_mask_storeu_epi16(place, lanes(count), round_off(x));
}
#endif

inline float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

// Rows are shared out in runs of about MIN_PARALLEL / 4 elements.
struct Rows {
    int64_t count, at_once, next;
    void (*act)(const void*, int64_t);
    const void* argument;
};

void act_on_rows(void* given) {
    Rows& rows = *(Rows*)given;
    int64_t first;
    while ((first = __atomic_fetch_add(&rows.next, rows.at_once, __ATOMIC_RELAXED)) < rows.count)
        for (int64_t row = first; row < smaller(first + rows.at_once, rows.count); row++)
            rows.act(rows.argument, row);
}

void each_row(int64_t count, int64_t width, int64_t num_threads,
              void (*act)(const void*, int64_t), const void* argument) {
    Rows rows = {count, larger(MIN_PARALLEL / 4 / larger(width, 1), 1), 0, act, argument};
    in_parallel(count * width < MIN_PARALLEL ? 1 : num_threads, act_on_rows, &rows);
}

// How transformers' families multiply by the weight: after rounding (Llama), or one more than it,
// before (Gemma).
enum Kind : int64_t { ROUNDED_FIRST = 0, ONE_MORE = 1 };

template <class Stored>
struct Scale {
    const Stored* weight;
    float epsilon;
    int64_t kind;

    floats apply(floats x, float factor, int64_t at, int64_t count) const {
        floats w = take(weight + at, count);
        return kind == ONE_MORE ? x * factor * (w + 1.0f) : rounded<Stored>(x * factor) * w;
    }
};

template <class Stored>
struct Norm {
    Stored* x;
    const Stored* added;
    Stored* out;
    int64_t width;
    Scale<Stored> scale;
};

template <class Stored>
void norm_row(const void* argument, int64_t row) {
    const Norm<Stored>& n = *(const Norm<Stored>*)argument;
    Stored *x = n.x + row * n.width, *out = n.out + row * n.width;
    floats squares[2] = {};
    for (int64_t at = 0, turn = 0; at < n.width; at += LANES, turn ^= 1) {
        int64_t count = n.width - at;
        floats each = take(x + at, count);
        if (n.added) {
            each = rounded<Stored>(each + take(n.added + row * n.width + at, count));
            put(x + at, each, count);
        }
        squares[turn] += each * each;
    }
    float mean = total(squares[0] + squares[1]) / float(n.width);
    float factor = inverse_root(mean + n.scale.epsilon);
    for (int64_t at = 0; at < n.width; at += LANES)
        put(out + at, n.scale.apply(take(x + at, n.width - at), factor, at, n.width - at),
            n.width - at);
}

template <class Stored>
struct Rope {
    Stored* x;
    const Stored *cos, *sin;  // [rows, rotary]
    int64_t stride, query_heads, query_stride, key_heads, head, rotary;
    Scale<Stored> query_scale, key_scale;  // null weights: none
};

// Into `kept` [head] floats.
template <class Stored>
void norm_head(const Rope<Stored>& r, const Stored* head, const Scale<Stored>& scale, float* kept) {
    floats squares = {};
    for (int64_t at = 0; at < r.head; at += LANES) {
        floats each = take(head + at, r.head - at);
        squares += each * each;
        store(kept + at, each);
    }
    if (!scale.weight) return;
    float factor = inverse_root(total(squares) / float(r.head) + scale.epsilon);
    for (int64_t at = 0; at < r.head; at += LANES)
        store(kept + at, rounded<Stored>(scale.apply(load(kept + at), factor, at, r.head - at)));
}

template <class Stored>
void turn_head(const Rope<Stored>& r, const Stored* cos, const Stored* sin,
               const float* kept, Stored* head) {
    int64_t half = r.rotary / 2;
    for (int64_t at = 0; at < half; at += LANES) {
        int64_t count = half - at;
        floats a = load(kept + at), b = load(kept + half + at);
        floats turned_a = a * take(cos + at, count) - b * take(sin + at, count);
        floats turned_b = b * take(cos + half + at, count) + a * take(sin + half + at, count);
        put(head + at, turned_a, count);
        put(head + half + at, turned_b, count);
    }
    for (int64_t at = r.rotary; at < r.head; at += LANES) put(head + at, load(kept + at), r.head - at);
}

template <class Stored>
void rope_row(const void* argument, int64_t row) {
    const Rope<Stored>& r = *(const Rope<Stored>*)argument;
    alignas(64) float kept[MAX_HEAD + 2 * LANES];
    Stored* head = r.x + row * r.stride;
    for (int64_t i = 0; i < r.query_heads + r.key_heads; i++) {
        const bool is_query = i < r.query_heads;
        norm_head(r, head, is_query ? r.query_scale : r.key_scale, kept);
        turn_head(r, r.cos + row * r.rotary, r.sin + row * r.rotary, kept, head);
        head += is_query ? r.query_stride : r.head;
    }
}

template <class Stored>
struct Gate {
    const Stored* x;  // [rows, 2 * width]: gates, then what they let through
    Stored* out;
    int64_t width, act;
};

template <class Stored>
void gate_row(const void* argument, int64_t row) {
    const Gate<Stored>& g = *(const Gate<Stored>*)argument;
    const Stored *gates = g.x + row * 2 * g.width, *values = gates + g.width;
    Stored* out = g.out + row * g.width;
    for (int64_t at = 0; at < g.width; at += LANES) {
        int64_t count = g.width - at;
        floats gate = take(gates + at, count), value = take(values + at, count);
        put(out + at, gated<Stored>(g.act, gate, value), count);
    }
}

template <class Stored>
struct HeadGates {
    Stored* x;
    const Stored* gates;
    int64_t heads, head, row_stride, head_stride;
};

template <class Stored>
void gate_heads_row(const void* argument, int64_t row) {
    const HeadGates<Stored>& g = *(const HeadGates<Stored>*)argument;
    Stored* x = g.x + row * g.heads * g.head;
    const Stored* gates = g.gates + row * g.row_stride;
    for (int64_t i = 0; i < g.heads; i++, x += g.head, gates += g.head_stride)
        for (int64_t at = 0; at < g.head; at += LANES) {
            const int64_t count = g.head - at;
            const floats open = rounded<Stored>(sigmoid(take(gates + at, count)));
            put(x + at, take(x + at, count) * open, count);
        }
}

template <class Stored>
struct RowProduct {
    const Stored *a, *b;
    Stored* out;
    int64_t a_stride, b_stride, width;
};

template <class Stored>
void product_row(const void* argument, int64_t row) {
    const RowProduct<Stored>& p = *(const RowProduct<Stored>*)argument;
    const Stored *a = p.a + row * p.a_stride, *b = p.b + row * p.b_stride;
    Stored* out = p.out + row * p.width;
    for (int64_t at = 0; at < p.width; at += LANES)
        put(out + at, take(a + at, p.width - at) * take(b + at, p.width - at), p.width - at);
}

template <class Stored>
struct Sum {
    const Stored *a, *b;
    Stored* out;
    int64_t width;
};

template <class Stored>
void sum_row(const void* argument, int64_t row) {
    const Sum<Stored>& s = *(const Sum<Stored>*)argument;
    const int64_t from = row * s.width;
    for (int64_t at = 0; at < s.width; at += LANES)
        put(s.out + from + at, take(s.a + from + at, s.width - at) + take(s.b + from + at, s.width - at),
            s.width - at);
}

template <class Act>
void of_dtype(bool is_bf16, Act act) {
#if QUIRE_HAS_BF16_DOT
    if (is_bf16) return act(bf16{});
#endif
    act(float{});
}

}  // namespace

extern "C" bool quire_fused_takes(bool is_bf16) { return QUIRE_HAS_BF16_DOT || !is_bf16; }

extern "C" void quire_norm(bool is_bf16, void* x, const void* added, const void* weight,
                           int64_t rows, int64_t width, double epsilon, int64_t kind, void* out,
                           int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        Norm<T> norm = {(T*)x, (const T*)added, (T*)out, width,
                        {(const T*)weight, float(epsilon), kind}};
        each_row(rows, width, num_threads, norm_row<T>, &norm);
    });
}

extern "C" void quire_rope(bool is_bf16, void* x, int64_t rows, int64_t stride, int64_t query_heads,
                           int64_t query_stride, int64_t key_heads, int64_t head, const void* cos, const void* sin,
                           int64_t rotary, const void* query_weight, const void* key_weight,
                           double query_epsilon, double key_epsilon, int64_t kind,
                           int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        Rope<T> rope = {(T*)x, (const T*)cos, (const T*)sin, stride, query_heads, query_stride,
                        key_heads, head, rotary, {(const T*)query_weight, float(query_epsilon), kind},
                        {(const T*)key_weight, float(key_epsilon), kind}};
        each_row(rows, (query_heads + key_heads) * head, num_threads, rope_row<T>, &rope);
    });
}

extern "C" void quire_gate(bool is_bf16, const void* x, int64_t rows, int64_t width, int64_t act,
                           void* out, int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        Gate<T> gate = {(const T*)x, (T*)out, width, act};
        each_row(rows, 2 * width, num_threads, gate_row<T>, &gate);
    });
}

extern "C" void quire_gate_heads(bool is_bf16, void* x, const void* gates, int64_t rows,
                                 int64_t heads, int64_t head, int64_t row_stride,
                                 int64_t head_stride, int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        HeadGates<T> gate = {(T*)x, (const T*)gates, heads, head, row_stride, head_stride};
        each_row(rows, heads * head, num_threads, gate_heads_row<T>, &gate);
    });
}

extern "C" void quire_product(bool is_bf16, const void* a, int64_t a_stride, const void* b,
                              int64_t b_stride, int64_t rows, int64_t width, void* out,
                              int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        RowProduct<T> product = {(const T*)a, (const T*)b, (T*)out, a_stride, b_stride, width};
        each_row(rows, width, num_threads, product_row<T>, &product);
    });
}

extern "C" void quire_sum(bool is_bf16, const void* a, const void* b, int64_t rows, int64_t width,
                          void* out, int64_t num_threads) {
    of_dtype(is_bf16, [&](auto of) {
        typedef decltype(of) T;
        Sum<T> sum = {(const T*)a, (const T*)b, (T*)out, width};
        each_row(rows, width, num_threads, sum_row<T>, &sum);
    });
}
