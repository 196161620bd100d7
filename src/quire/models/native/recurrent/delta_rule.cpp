// The gated delta rule, token by token: S = d S; S += k (x) beta (v - S^T k); out = S^T q.
//
// A column of S and its value need no other column. A task takes slices of a head's columns, each
// of two vectors, through all tokens of a sequence. For few tokens a slice is read and written in
// place; for more it is packed, so that it stays in the cache of first level, and goes back to the
// store at the end of the piece. Rows are summed up in order, every fourth one into the same sum,
// whatever the slice and wherever it lies.
#include "recurrent/pieces.h"

namespace {

constexpr int VECTORS = 2;  // of a slice's row
constexpr int64_t COLUMNS = VECTORS * LANES;
constexpr int SUMS = 4;
constexpr int64_t MAX_IN_PLACE = 4;  // tokens of a piece that does not pay for packing
constexpr float EPSILON = 1e-6f;

// What the slices of a head share of the tokens of a block: the vectors of a token are `padded`
// apart, and zeros follow the first key_size elements.
struct Prepared {
    int64_t key_size, rows, padded;  // rows of a packed slice
    float *queries, *keys, *decays, *decayed_keys, *betas;

    Prepared(Arena& arena, int64_t key_size)
        : key_size(key_size), rows(round_up(key_size, SUMS)), padded(round_up(key_size, LANES)),
          queries(arena.take<float>(TOKENS * padded)), keys(arena.take<float>(TOKENS * padded)),
          decays(arena.take<float>(TOKENS * padded)),
          decayed_keys(arena.take<float>(TOKENS * padded)), betas(arena.take<float>(TOKENS)) {}
};

// The whole scratch of a thread.
struct Scratch {
    Arena arena;
    Prepared prepared;
    float* slices;  // [slices, rows, COLUMNS]

    Scratch(const DeltaRuleCall& call, char* base)
        : arena{base, 0}, prepared(arena, call.key_size),
          slices(arena.take<float>(ratio_up(call.value_size, COLUMNS) * prepared.rows * COLUMNS)) {}
};

// The vector as floats into `out`, multiplied by `scale` over its L2 norm.
template <class Stored>
void normalise(const Stored* from, int64_t count, float scale, float* out) {
    floats squares = {};
    for (int64_t i = 0; i < count; i += LANES) {
        const floats each = take_row(from + i, count - i);
        squares = multiply_add(each, each, squares);
        store(out + i, each);
    }
    const floats factor = splat(scale / __builtin_sqrtf(total(squares) + EPSILON));
    for (int64_t i = 0; i < count; i += LANES) store(out + i, load(out + i) * factor);
}

template <class Stored>
__attribute__((noinline)) void prepare(const DeltaRuleCall& call, int64_t token, int64_t head,
                                       const Prepared& out, int64_t at) {
    const int64_t key_head = head / (call.heads / call.key_heads), width = call.key_size;
    const int64_t place = at * out.padded;
    float *keys = out.keys + place, *decays = out.decays + place;
    normalise((const Stored*)call.query + token * call.query_stride + key_head * width, width,
              1.0f / __builtin_sqrtf(float(width)), out.queries + place);
    normalise((const Stored*)call.key + token * call.key_stride + key_head * width, width, 1.0f,
              keys);
    const float* given = call.decay + token * call.decay_stride;
    given += call.is_by_channel ? head * width : head;
    floats decay = exponential(splat(*given));
    for (int64_t i = 0; i < width; i += LANES) {
        if (call.is_by_channel) decay = exponential(take_row(given + i, width - i));
        store(decays + i, decay);
        store(out.decayed_keys + place + i, decay * load(keys + i));
    }
    const Stored* betas = (const Stored*)call.beta + token * call.beta_stride;
    out.betas[at] = to_float(betas[head]);
}

// A slice in memory: `rows` of COLUMNS floats, `stride` apart; a multiple of SUMS.
struct Slice {
    const float* read;
    float* write;
    int64_t stride, rows;
};

typedef floats Sums[SUMS][VECTORS];

inline floats add_up(const Sums& sums, int v) {
    return (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
}

// values: what the token's values are in, and its outputs out.
template <bool IS_BY_CHANNEL>
inline void step(const Slice slice, const Prepared& prepared, int64_t at, floats (&values)[VECTORS]) {
    const int64_t place = at * prepared.padded;
    const float *keys = prepared.keys + place, *queries = prepared.queries + place;
    const float *decays = prepared.decays + place, *decayed = prepared.decayed_keys + place;
    const floats beta = splat(prepared.betas[at]), decay = splat(decays[0]);
    Sums found = {{floats{}}}, outputs = {{floats{}}};
    floats delta[VECTORS];
    const float* read = slice.read;
    for (int64_t row = 0; row < slice.rows; row += SUMS) {
#pragma GCC unroll 4
        for (int sum = 0; sum < SUMS; sum++, read += slice.stride) {
            const floats key = splat(decayed[row + sum]);
            for (int v = 0; v < VECTORS; v++)
                found[sum][v] = multiply_add(key, load(read + v * LANES), found[sum][v]);
        }
    }
    for (int v = 0; v < VECTORS; v++) delta[v] = (values[v] - add_up(found, v)) * beta;
    read = slice.read;
    float* write = slice.write;
    for (int64_t row = 0; row < slice.rows; row += SUMS) {
#pragma GCC unroll 4
        for (int sum = 0; sum < SUMS; sum++, read += slice.stride, write += slice.stride) {
            const floats key = splat(keys[row + sum]), query = splat(queries[row + sum]);
            for (int v = 0; v < VECTORS; v++) {
                floats each = load(read + v * LANES);
                each *= IS_BY_CHANNEL ? splat(decays[row + sum]) : decay;
                each = multiply_add(key, delta[v], each);
                store(write + v * LANES, each);
                outputs[sum][v] = multiply_add(query, each, outputs[sum][v]);
            }
        }
    }
    for (int v = 0; v < VECTORS; v++) values[v] = add_up(outputs, v);
}

void pack(const float* from, int64_t stride, int64_t rows, int64_t columns, float* packed,
          int64_t all_rows) {
    memset(packed + rows * COLUMNS, 0, size_t((all_rows - rows) * COLUMNS) * sizeof(float));
    for (int64_t row = 0; row < rows; row++)
        for (int v = 0; v < VECTORS; v++) {
            const int64_t count = larger(columns - v * LANES, 0);
            floats each = count ? take_row(from + row * stride + v * LANES, count) : floats{};
            store(packed + row * COLUMNS + v * LANES, each);
        }
}

void unpack(const float* packed, int64_t stride, int64_t rows, int64_t columns, float* to) {
    for (int64_t row = 0; row < rows; row++)
        for (int v = 0; v < VECTORS; v++) {
            const int64_t count = larger(columns - v * LANES, 0);
            if (count)
                put_row(to + row * stride + v * LANES, load(packed + row * COLUMNS + v * LANES), count);
        }
}

// One head of a call, from one of its columns on.
template <class Stored>
struct Head {
    const DeltaRuleCall& call;
    int64_t head, column;

    int64_t columns() const { return smaller(call.value_size - column, COLUMNS); }

    // The tokens from `first` on, through the slice.
    template <bool IS_BY_CHANNEL>
    __attribute__((noinline)) void advance(const Slice& slice, const Prepared& prepared,
                                           int64_t first, int64_t count) const {
        const int64_t place = head * call.value_size + column;
        Slice now = slice;
        for (int64_t at = 0; at < count; at++, now.read = now.write) {
            const Stored* value = (const Stored*)call.value + (first + at) * call.value_stride;
            Stored* out = (Stored*)call.out + (first + at) * call.heads * call.value_size;
            floats values[VECTORS] = {};
            for (int v = 0; v < VECTORS; v++)
                if (v * LANES < columns())
                    values[v] = take_row(value + place + v * LANES, columns() - v * LANES);
            step<IS_BY_CHANNEL>(now, prepared, at, values);
            for (int v = 0; v < VECTORS; v++)
                if (v * LANES < columns())
                    put_row(out + place + v * LANES, values[v], columns() - v * LANES);
        }
    }

    void run(const Slice& slice, const Prepared& prepared, int64_t first, int64_t count) const {
        if (call.is_by_channel)
            advance<true>(slice, prepared, first, count);
        else
            advance<false>(slice, prepared, first, count);
    }

    // The tokens [first, first + count) of a piece, which begins at its state and ends there too.
    void run_block(const Piece& piece, int64_t first, int64_t count, float* packed,
                   const Prepared& prepared) const {
        const int64_t rows = call.key_size, stride = call.value_size;
        const int64_t all_rows = prepared.rows;
        const int64_t place = head * rows * stride + column;
        const float* read = piece.read + place;
        float* write = piece.write + place;
        const bool is_short = count > 0 && piece.num_tokens <= MAX_IN_PLACE;
        if (is_short && columns() == COLUMNS && rows == all_rows)
            return run({read, write, stride, rows}, prepared, piece.first, count);
        if (first == 0) pack(read, stride, rows, columns(), packed, all_rows);
        run({packed, packed, COLUMNS, all_rows}, prepared, piece.first + first, count);
        if (first + count == piece.num_tokens) unpack(packed, stride, rows, columns(), write);
    }
};

// The slices [from, to) of a head, through the pieces of a sequence.
template <class Stored>
void run_slices(const DeltaRuleCall& call, int64_t sequence, int64_t head, int64_t from, int64_t to,
                const Scratch& scratch) {
    each_piece(*call.pieces, *call.store, sequence, [&](const Piece& piece) {
        each_block(piece.num_tokens, [&](int64_t first, int64_t count) {
            for (int64_t at = 0; at < count; at++)
                prepare<Stored>(call, piece.first + first + at, head, scratch.prepared, at);
            for (int64_t slice = from; slice < to; slice++)
                Head<Stored>{call, head, slice * COLUMNS}.run_block(
                    piece, first, count, scratch.slices + (slice - from) * scratch.prepared.rows * COLUMNS,
                    scratch.prepared);
        });
    });
}

}  // namespace

extern "C" int64_t quire_delta_rule_scratch(const DeltaRuleCall* call) {
    return Scratch(*call, nullptr).arena.num_bytes;
}

extern "C" int quire_delta_rule(const DeltaRuleCall* given) {
    const DeltaRuleCall& call = *given;
    const StatePieces& pieces = *call.pieces;
    if (!are_within(pieces, *call.store)) return 1;
    const int64_t num_slices = ratio_up(call.value_size, COLUMNS);
    const int64_t num_heads = pieces.num_seqs * call.heads;
    const int64_t parts = num_parts(num_heads, num_slices, call.num_threads);
    const int64_t work = pieces.num_tokens * call.heads * call.key_size * call.value_size;
    of_stored(call.is_bf16, [&](auto of) {
        share_tasks(num_heads * parts, work, call.num_threads, call.scratch,
                    quire_delta_rule_scratch(given), [&](int64_t task, char* own) {
                        const int64_t part = task % parts, head = task / parts;
                        run_slices<decltype(of)>(call, head / call.heads, head % call.heads,
                                                 part * num_slices / parts,
                                                 (part + 1) * num_slices / parts,
                                                 Scratch(call, own));
                    });
    });
    return 0;
}
