// All layers of a decoder in one call: the same kernels as in single calls, in the same order,
// with nothing between them that could let the threads go to sleep.
#include "common/common.h"

namespace {

constexpr int64_t GATED_ROWS = 32;  // come together

inline int64_t element_bytes(const DecoderCall& d) { return d.is_bf16 ? 2 : 4; }

inline bool is_exact(const LinearWeight& w) { return w.num_bits == 16; }

constexpr int64_t IN_GROUPS = 0;  // as the number of bits

// The largest that any layer takes, one after the other.
struct Buffers {
    char *normed, *qkv, *attended, *projected, *gate_up, *gated;
    char *quantised, *arranged, *mixer;
    int64_t num_bytes;
};

int64_t query_stride(const DecoderLayer& layer) { return layer.head_size * (1 + layer.is_gated); }

AttentionCall call_of(const DecoderCall& d, const DecoderLayer& layer, const Buffers& buffers) {
    AttentionCall call = *layer.attention;
    const GroupTables& tables = d.groups[layer.group];
    const int64_t head = layer.head_size, row = layer.qkv.num_rows;
    call.query = buffers.qkv;
    const int64_t keys_at = layer.query_heads * query_stride(layer);
    call.key = buffers.qkv + keys_at * element_bytes(d);
    call.value = buffers.qkv + (keys_at + call.kv_heads * head) * element_bytes(d);
    call.out = buffers.attended;
    call.query_token_stride = call.key_token_stride = call.value_token_stride = row;
    call.query_head_stride = query_stride(layer);
    call.key_head_stride = call.value_head_stride = head;
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
    call.scratch = buffers.mixer;
    return call;
}

// The calls of a layer's gated delta net, with what they need beside the projections.
struct DeltaNet {
    ConvolutionCall convolution;
    DeltaRuleCall rule;
    DeltaNetCall call;
    int64_t num_bytes;

    DeltaNet(const DecoderCall& d, const DecoderLayer& layer, const Buffers& buffers)
        : convolution(*layer.delta_net->convolution), rule(*layer.delta_net->rule),
          call(*layer.delta_net) {
        const int64_t size = element_bytes(d), keys = rule.key_heads * rule.key_size;
        Arena arena{buffers.mixer, 0};
        char* convolved = arena.take<char>(d.num_tokens * convolution.channels * size);
        call.decays = arena.take<float>(d.num_tokens * rule.heads);
        call.opened = arena.take<char>(d.num_tokens * rule.heads * size);
        convolution.scratch =
            arena.take<char>(d.num_threads * quire_convolution_scratch(&convolution));
        rule.scratch = arena.take<char>(d.num_threads * quire_delta_rule_scratch(&rule));
        num_bytes = arena.num_bytes;
        convolution.pieces = rule.pieces = d.pieces;
        convolution.num_threads = rule.num_threads = d.num_threads;
        convolution.is_bf16 = rule.is_bf16 = d.is_bf16;
        convolution.rows = buffers.qkv;
        convolution.out = convolved;
        rule.query = convolved;
        rule.key = convolved + keys * size;
        rule.value = convolved + 2 * keys * size;
        rule.query_stride = rule.key_stride = rule.value_stride = convolution.channels;
        rule.decay = call.decays;
        rule.beta = call.opened;
        rule.decay_stride = rule.beta_stride = rule.heads;
        rule.out = buffers.attended;
        call.convolution = &convolution;
        call.rule = &rule;
        call.gate = buffers.qkv + layer.gate_at * size;
        call.betas = buffers.qkv + layer.beta_at * size;
        call.steps = buffers.qkv + layer.step_at * size;
        convolution.row_stride = call.gate_stride = call.beta_stride = call.step_stride =
            layer.qkv.num_rows;
    }
    DeltaNet(const DeltaNet&) = delete;  // its calls know each other's places
};

// The call of a layer's short convolution, with what it needs beside the projections.
struct ShortConvolution {
    ConvolutionCall call;
    char* gated;
    int64_t num_bytes;

    ShortConvolution(const DecoderCall& d, const DecoderLayer& layer, const Buffers& buffers)
        : call(*layer.convolution) {
        const int64_t num_bytes_each = d.num_tokens * call.channels * element_bytes(d);
        Arena arena{buffers.mixer, 0};
        gated = arena.take<char>(num_bytes_each);
        call.out = arena.take<char>(num_bytes_each);
        call.scratch = arena.take<char>(d.num_threads * quire_convolution_scratch(&call));
        num_bytes = arena.num_bytes;
        call.pieces = d.pieces;
        call.num_threads = d.num_threads;
        call.is_bf16 = d.is_bf16;
        call.rows = gated;
        call.row_stride = call.channels;
    }
};

bool needs_as_much(const AttentionCall& a, const AttentionCall& b) {
    return a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_size == b.head_size &&
           a.v_head_size == b.v_head_size && a.window_size == b.window_size &&
           a.chunk_size == b.chunk_size;
}

Buffers lay_out(const DecoderCall& d, char* base) {
    int64_t qkv = 0, attended = 0, gate_up = 0, columns = 0, mixer = 0;
    const AttentionCall* last = nullptr;
    AttentionCall call;
    for (int64_t i = 0; i < d.num_layers; i++) {
        const DecoderLayer& layer = d.layers[i];
        qkv = larger(qkv, layer.qkv.num_rows);
        attended = larger(attended, layer.out.num_columns);
        gate_up = larger(gate_up, layer.gate_up.num_rows);
        columns = larger(columns, larger(layer.out.num_columns, layer.down.num_columns));
        if (layer.delta_net) mixer = larger(mixer, DeltaNet(d, layer, {}).num_bytes);
        if (layer.convolution) mixer = larger(mixer, ShortConvolution(d, layer, {}).num_bytes);
        if (!layer.attention) continue;
        AttentionCall next = call_of(d, layer, {});
        if (!last || !needs_as_much(*last, next))
            mixer = larger(mixer, quire_attend_scratch(&next));
        call = next;
        last = &call;
    }
    columns = larger(columns, d.hidden_size);
    Arena arena{base, 0};
    Buffers out{};
    const int64_t size = element_bytes(d);
    out.normed = arena.take<char>(d.num_tokens * d.hidden_size * size);
    out.qkv = arena.take<char>(d.num_tokens * qkv * size);
    out.attended = arena.take<char>(d.num_tokens * attended * size);
    out.projected = arena.take<char>(d.num_tokens * d.hidden_size * size);
    out.gate_up = arena.take<char>(d.num_tokens * gate_up * size);
    out.gated = arena.take<char>(round_up(d.num_tokens, GATED_ROWS) * gate_up / 2 * size);
#if QUIRE_HAS_BF16_DOT
    bool is_quantised = false, has_exact = false;
    for (int64_t i = 0; i < d.num_layers; i++) {
        const DecoderLayer& layer = d.layers[i];
        for (const LinearWeight* w : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
            if (w->num_bits != IN_GROUPS) (is_exact(*w) ? has_exact : is_quantised) = true;
    }
    out.quantised =
        arena.take<char>(is_quantised ? d.num_tokens * quire_w8a8_scratch(columns) : 0);
    out.arranged = arena.take<char>(
        has_exact && d.is_bf16 ? quire_compressed_bf16_scratch(d.num_tokens, columns) : 0);
#endif
    out.mixer = arena.take<char>(mixer);
    out.num_bytes = arena.num_bytes;
    return out;
}

struct Run {
    const DecoderCall& d;
    const Buffers& buffers;

    void multiply(const void* x, int64_t rows, const LinearWeight& w, void* y) const {
        if (w.num_bits == IN_GROUPS)
            return quire_grouped((const float*)x, rows, w.packed, (const float*)w.bias, w.num_rows,
                                 w.num_columns, (float*)y, d.num_threads);
#if QUIRE_HAS_BF16_DOT
        if (!is_exact(w)) {
            const auto linear = w.num_bits == 4 ? quire_w4a8 : quire_w8a8;
            return linear(x, d.is_bf16, rows, (const uint8_t*)w.packed, w.outliers, w.bias,
                          w.num_rows, w.num_columns, y, buffers.quantised, d.num_threads);
        }
        if (d.is_bf16)
            return quire_compressed_bf16((const uint16_t*)x, rows, w.packed,
                                         (const uint16_t*)w.bias, w.num_rows, w.num_columns,
                                         (uint16_t*)y, buffers.arranged, d.num_threads);
#endif
        const auto linear = is_exact(w) ? quire_bf16_storage : quire_w8a32;
        linear((const float*)x, rows, w.packed, (const float*)w.bias, w.num_rows, w.num_columns,
               (float*)y, d.num_threads);
    }

    // Adds `added` to x, unless it is null.
    void norm(char* x, const char* added, int64_t rows, const NormWeight& by, char* out) const {
        quire_norm(d.is_bf16, x, added, by.weight, rows, d.hidden_size, by.epsilon, by.kind, out,
                   d.num_threads);
    }

    // Returns where the normed rows are: in `out`, or in x itself if the layer has no such norm.
    char* norm_if_any(char* x, int64_t rows, const NormWeight& by, char* out) const {
        if (!by.weight) return x;
        norm(x, nullptr, rows, by, out);
        return out;
    }

    void add(const char* projected, int64_t rows) const {
        quire_sum(d.is_bf16, d.states, projected, rows, d.hidden_size, d.states, d.num_threads);
    }

    // From d.states to `attended`. False: a slot, a block or a state outside of the store.
    bool mix(const DecoderLayer& layer) const {
        const char* x = norm_if_any(d.states, d.num_tokens, layer.before, buffers.normed);
        multiply(x, d.num_tokens, layer.qkv, buffers.qkv);
        if (layer.convolution) return convolve(layer);
        if (!layer.delta_net) return attend(layer);
        const DeltaNet net(d, layer, buffers);
        return quire_delta_net(&net.call) == 0;
    }

    bool convolve(const DecoderLayer& layer) const {
        const ShortConvolution conv(d, layer, buffers);
        const int64_t channels = conv.call.channels, num_bytes = channels * element_bytes(d);
        const char *before = buffers.qkv, *behind = before + num_bytes, *rows = behind + num_bytes;
        quire_product(d.is_bf16, before, layer.qkv.num_rows, rows, layer.qkv.num_rows,
                      d.num_tokens, channels, conv.gated, d.num_threads);
        if (quire_convolution(&conv.call)) return false;
        quire_product(d.is_bf16, behind, layer.qkv.num_rows, conv.call.out, channels, d.num_tokens,
                      channels, buffers.attended, d.num_threads);
        return true;
    }

    bool attend(const DecoderLayer& layer) const {
        AttentionCall call = call_of(d, layer, buffers);
        const RotaryTables& by = d.rotary[layer.rotary];
        quire_rope(d.is_bf16, buffers.qkv, d.num_tokens, layer.qkv.num_rows, layer.query_heads,
                   query_stride(layer), call.kv_heads, layer.head_size, by.cos, by.sin, by.rotary_dim,
                   layer.query.weight, layer.key.weight, layer.query.epsilon, layer.key.epsilon,
                   layer.query.kind, d.num_threads);
        if (quire_attend(&call)) return false;
        if (layer.is_gated)
            quire_gate_heads(d.is_bf16, buffers.attended,
                             buffers.qkv + layer.head_size * element_bytes(d), d.num_tokens,
                             layer.query_heads, layer.head_size, layer.qkv.num_rows,
                             query_stride(layer), d.num_threads);
        return true;
    }

    // Moves the rows of `logits_indices` to the front.
    void gather(int64_t size, char* rows) const {
        const int64_t num_bytes = size * element_bytes(d);
        for (int64_t i = 0; i < d.num_logits; i++)
            memmove(rows + i * num_bytes, rows + d.logits_indices[i] * num_bytes, size_t(num_bytes));
    }

    // From x to `projected`.
    void mlp(const DecoderLayer& layer, const char* x, int64_t rows) const {
        const LinearWeight &w = layer.gate_up, &down = layer.down;
#if QUIRE_HAS_TILES
        if (d.is_bf16 && is_exact(w) && is_exact(down) &&
            quire_compressed_bf16_mlp(
                (const uint16_t*)x, rows, w.packed, (const uint16_t*)w.bias, w.num_rows,
                w.num_columns, layer.act, down.packed, (const uint16_t*)down.bias, down.num_rows,
                (uint16_t*)buffers.gated, (uint16_t*)buffers.projected, buffers.arranged,
                d.num_threads))
            return;
#endif
        multiply(x, rows, w, buffers.gate_up);
        quire_gate(d.is_bf16, buffers.gate_up, rows, w.num_rows / 2, layer.act, buffers.gated,
                   d.num_threads);
        multiply(buffers.gated, rows, down, buffers.projected);
    }

    void finish(const DecoderLayer& layer, int64_t rows) const {
        char *const projected = buffers.projected, *x = d.states;
        multiply(buffers.attended, rows, layer.out, projected);
        norm_if_any(projected, rows, layer.attended, projected);
        if (layer.between.weight) {
            x = buffers.normed;
            norm(d.states, projected, rows, layer.between, x);
        } else {
            add(projected, rows);
        }
        mlp(layer, x, rows);
        norm_if_any(projected, rows, layer.finished, projected);
        add(projected, rows);
    }

    bool all() const {
        for (int64_t i = 0; i < d.num_layers; i++) {
            const DecoderLayer& layer = d.layers[i];
            if (!mix(layer)) return false;
            int64_t rows = d.num_tokens;
            if (i + 1 == d.num_layers) {
                rows = d.num_logits;
                gather(d.hidden_size, d.states);
                gather(layer.out.num_columns, buffers.attended);
            }
            finish(layer, rows);
        }
        norm(d.states, nullptr, d.num_logits, d.last, d.out);
        return true;
    }
};

}  // namespace

extern "C" int64_t quire_decoder_scratch(const DecoderCall* d) {
    return lay_out(*d, nullptr).num_bytes;
}

extern "C" int quire_decoder(const DecoderCall* d) {
    Buffers buffers = lay_out(*d, d->scratch);
    return Run{*d, buffers}.all() ? 0 : 1;
}
