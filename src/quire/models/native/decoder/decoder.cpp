// All layers of a plain decoder in one call: the same kernels as in single calls, in the same order,
// with nothing between them that could let the threads go to sleep.
#include "attention/plan.h"

#define QUIRE_KERNEL(type, name) extern "C" type QUIRE_JOIN(name, QUIRE_ISA)
#define QUIRE_CALL(name) QUIRE_JOIN(name, QUIRE_ISA)

QUIRE_KERNEL(void, quire_bf16_storage)
(const void*, int64_t, const void*, const void*, int64_t, int64_t, void*, int64_t);
#if QUIRE_HAS_TILES
QUIRE_KERNEL(bool, quire_compressed_bf16_mlp)
(const void*, int64_t, const void*, const void*, int64_t, int64_t, int64_t, const void*,
 const void*, int64_t, void*, void*, void*, int64_t);
#endif
#if QUIRE_HAS_BF16_DOT
QUIRE_KERNEL(void, quire_compressed_bf16)
(const void*, int64_t, const void*, const void*, int64_t, int64_t, void*, void*, int64_t);
QUIRE_KERNEL(int64_t, quire_compressed_bf16_scratch)(int64_t, int64_t);
QUIRE_KERNEL(void, quire_w8a8)
(const void*, bool, int64_t, const void*, const void*, int64_t, int64_t, void*, void*, int64_t);
QUIRE_KERNEL(int64_t, quire_w8a8_scratch)(int64_t);
#else
QUIRE_KERNEL(void, quire_w8a32)
(const void*, int64_t, const void*, const void*, int64_t, int64_t, void*, int64_t);
#endif
QUIRE_KERNEL(void, quire_norm)
(bool, void*, const void*, const void*, int64_t, int64_t, double, int64_t, void*, int64_t);
QUIRE_KERNEL(void, quire_rope)
(bool, void*, int64_t, int64_t, int64_t, int64_t, int64_t, const void*, const void*, int64_t,
 const void*, const void*, double, double, int64_t, int64_t);
QUIRE_KERNEL(void, quire_gate)(bool, const void*, int64_t, int64_t, int64_t, void*, int64_t);
QUIRE_KERNEL(void, quire_sum)(bool, const void*, const void*, int64_t, int64_t, void*, int64_t);
QUIRE_KERNEL(int64_t, attend_scratch)(const void*);
QUIRE_KERNEL(int, attend)(const void*);

namespace {

// All mirrored in decoder.py.
struct Weight {
    const void *packed, *bias;
    int64_t num_rows, num_columns;
};

struct Norm {
    const void* weight;  // null: none
    double epsilon;
    int64_t kind;
};

struct Layer {
    Weight qkv, out, gate_up, down;
    Norm before, between, query, key;
    int64_t query_heads, head_size, act, group;
    const Call* attention;  // what stays the same from step to step
};

// The slots and the block table of one KV cache group.
struct GroupTables {
    const int64_t* slots;
    const int32_t* table;
    int64_t table_stride, table_columns;
};

// All floats, or bfloat16.
struct Decoder {
    const Layer* layers;
    const GroupTables* groups;
    char* states;                   // [num_tokens, hidden_size], overwritten
    char* out;                      // [num_logits, hidden_size]
    const char *cos, *sin;          // [num_tokens, rotary_dim]
    const int64_t* logits_indices;  // [num_logits], rising
    const int64_t *query_starts, *context_lens;
    char* scratch;
    Norm last;
    int64_t num_layers, hidden_size, rotary_dim, num_tokens, num_logits, num_seqs, is_int8, is_bf16;
    int64_t num_threads;

    int64_t element_bytes() const { return is_bf16 ? 2 : 4; }
};

constexpr int64_t GATED_ROWS = 32;  // come together

// The largest that any layer takes, one after the other.
struct Buffers {
    char *normed, *qkv, *attended, *projected, *gate_up, *gated;
    char *quantised, *arranged, *attention;
    int64_t num_bytes;
};

Call call_of(const Decoder& d, const Layer& layer, const Buffers& buffers) {
    Call call = *layer.attention;
    const GroupTables& tables = d.groups[layer.group];
    const int64_t head = layer.head_size, row = layer.qkv.num_rows;
    call.query = buffers.qkv;
    call.key = buffers.qkv + layer.query_heads * head * d.element_bytes();
    call.value = buffers.qkv + (layer.query_heads + call.kv_heads) * head * d.element_bytes();
    call.out = buffers.attended;
    call.query_token_stride = call.key_token_stride = call.value_token_stride = row;
    call.query_head_stride = call.key_head_stride = call.value_head_stride = head;
    call.sinks = nullptr;
    call.slots = tables.slots;
    call.table = tables.table;
    call.table_stride = tables.table_stride;
    call.table_columns = tables.table_columns;
    call.query_starts = d.query_starts;
    call.context_lens = d.context_lens;
    call.num_tokens = d.num_tokens;
    call.num_seqs = d.num_seqs;
    call.heads = layer.query_heads;
    call.num_threads = d.num_threads;
    call.scratch = buffers.attention;
    return call;
}

bool needs_as_much(const Call& a, const Call& b) {
    return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_size == b.head_size &&
           a.v_head_size == b.v_head_size && a.window == b.window && a.chunk == b.chunk;
}

Buffers lay_out(const Decoder& d, char* base) {
    int64_t qkv = 0, attended = 0, gate_up = 0, columns = 0, attention = 0;
    const Call* last = nullptr;
    Call call;
    for (int64_t i = 0; i < d.num_layers; i++) {
        const Layer& layer = d.layers[i];
        qkv = larger(qkv, layer.qkv.num_rows);
        attended = larger(attended, layer.out.num_columns);
        gate_up = larger(gate_up, layer.gate_up.num_rows);
        columns = larger(columns, larger(layer.out.num_columns, layer.down.num_columns));
        Call next = call_of(d, layer, {});
        if (!last || !needs_as_much(*last, next))
            attention = larger(attention, QUIRE_CALL(attend_scratch)(&next));
        call = next;
        last = &call;
    }
    columns = larger(columns, d.hidden_size);
    Arena arena{base, 0};
    Buffers out{};
    const int64_t size = d.element_bytes();
    out.normed = arena.take<char>(d.num_tokens * d.hidden_size * size);
    out.qkv = arena.take<char>(d.num_tokens * qkv * size);
    out.attended = arena.take<char>(d.num_tokens * attended * size);
    out.projected = arena.take<char>(d.num_tokens * d.hidden_size * size);
    out.gate_up = arena.take<char>(d.num_tokens * gate_up * size);
    out.gated = arena.take<char>(round_up(d.num_tokens, GATED_ROWS) * gate_up / 2 * size);
#if QUIRE_HAS_BF16_DOT
    out.quantised =
        arena.take<char>(d.is_int8 ? d.num_tokens * QUIRE_CALL(quire_w8a8_scratch)(columns) : 0);
    const bool is_plain = d.is_bf16 && !d.is_int8;
    out.arranged = arena.take<char>(
        is_plain ? QUIRE_CALL(quire_compressed_bf16_scratch)(d.num_tokens, columns) : 0);
#endif
    out.attention = arena.take<char>(attention);
    out.num_bytes = arena.num_bytes;
    return out;
}

struct Run {
    const Decoder& d;
    const Buffers& buffers;

    void multiply(const char* x, int64_t rows, const Weight& w, char* y) const {
#if QUIRE_HAS_BF16_DOT
        if (d.is_int8)
            return QUIRE_CALL(quire_w8a8)(x, d.is_bf16, rows, w.packed, w.bias, w.num_rows,
                                          w.num_columns, y, buffers.quantised, d.num_threads);
        if (d.is_bf16)
            return QUIRE_CALL(quire_compressed_bf16)(x, rows, w.packed, w.bias, w.num_rows, w.num_columns,
                                            y, buffers.arranged, d.num_threads);
#else
        if (d.is_int8)
            return QUIRE_CALL(quire_w8a32)(x, rows, w.packed, w.bias, w.num_rows, w.num_columns, y,
                                           d.num_threads);
#endif
        QUIRE_CALL(quire_bf16_storage)(x, rows, w.packed, w.bias, w.num_rows, w.num_columns, y,
                                 d.num_threads);
    }

    void norm(const char* added, int64_t rows, const Norm& by, char* out) const {
        QUIRE_CALL(quire_norm)(d.is_bf16, d.states, added, by.weight, rows, d.hidden_size,
                               by.epsilon, by.kind, out, d.num_threads);
    }

    // False: a slot or a block outside of the store.
    bool attend(const Layer& layer) const {
        norm(nullptr, d.num_tokens, layer.before, buffers.normed);
        multiply(buffers.normed, d.num_tokens, layer.qkv, buffers.qkv);
        Call call = call_of(d, layer, buffers);
        QUIRE_CALL(quire_rope)(d.is_bf16, buffers.qkv, d.num_tokens, layer.qkv.num_rows,
                               layer.query_heads, call.kv_heads, layer.head_size, d.cos,
                               d.sin, d.rotary_dim, layer.query.weight, layer.key.weight,
                               layer.query.epsilon, layer.key.epsilon, layer.query.kind,
                               d.num_threads);
        return QUIRE_CALL(attend)(&call) == 0;
    }

    // Moves the rows of `logits_indices` to the front.
    void gather(int64_t size, char* rows) const {
        const int64_t num_bytes = size * d.element_bytes();
        for (int64_t i = 0; i < d.num_logits; i++)
            memmove(rows + i * num_bytes, rows + d.logits_indices[i] * num_bytes, size_t(num_bytes));
    }

    void mlp(const Layer& layer, int64_t rows) const {
        const Weight &w = layer.gate_up, &down = layer.down;
#if QUIRE_HAS_TILES
        if (d.is_bf16 && !d.is_int8 &&
            QUIRE_CALL(quire_compressed_bf16_mlp)(buffers.normed, rows, w.packed, w.bias, w.num_rows,
                                         w.num_columns, layer.act, down.packed, down.bias,
                                         down.num_rows, buffers.gated, buffers.projected,
                                         buffers.arranged, d.num_threads))
            return;
#endif
        multiply(buffers.normed, rows, w, buffers.gate_up);
        QUIRE_CALL(quire_gate)(d.is_bf16, buffers.gate_up, rows, w.num_rows / 2, layer.act,
                               buffers.gated, d.num_threads);
        multiply(buffers.gated, rows, down, buffers.projected);
    }

    void finish(const Layer& layer, int64_t rows) const {
        multiply(buffers.attended, rows, layer.out, buffers.projected);
        norm(buffers.projected, rows, layer.between, buffers.normed);
        mlp(layer, rows);
        QUIRE_CALL(quire_sum)(d.is_bf16, d.states, buffers.projected, rows, d.hidden_size, d.states,
                              d.num_threads);
    }

    bool all() const {
        for (int64_t i = 0; i < d.num_layers; i++) {
            const Layer& layer = d.layers[i];
            if (!attend(layer)) return false;
            int64_t rows = d.num_tokens;
            if (i + 1 == d.num_layers) {
                rows = d.num_logits;
                gather(d.hidden_size, d.states);
                gather(layer.out.num_columns, buffers.attended);
            }
            finish(layer, rows);
        }
        norm(nullptr, d.num_logits, d.last, d.out);
        return true;
    }
};

}  // namespace

// Returns the bytes of scratch for this step.
QUIRE_EXPORT(int64_t, quire_decoder_scratch)(const Decoder* d) { return lay_out(*d, nullptr).num_bytes; }

// Returns 0, or 1 where a slot or a block that is to be used lies outside of a store.
QUIRE_EXPORT(int, quire_decoder)(const Decoder* d) {
    Buffers buffers = lay_out(*d, d->scratch);
    return Run{*d, buffers}.all() ? 0 : 1;
}
