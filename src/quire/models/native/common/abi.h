// The binary interface of the library: the structures and functions by which Python calls kernels, and
// one kernel another.
//
// common.h includes this file as declarations, by which the compiler checks definitions and calls;
// cpu.cpp includes it once more as text. Python (models/native/abi.py) reads that text and this
// file, and refuses a library that was built from another. There are
//
//     QUIRE_STRUCT(NAME, fields)   QUIRE_FUNCTION(result, NAME, (arguments))
//
// of void, bool, int, int64_t, double, earlier structures, and pointers. A function that says "dot"
// is only in the instruction sets with bfloat16 and byte dot products, one that says "tiles" only in
// those with tiles.
//
// Everywhere: x [M, K], y [M, N] and weights W [N, K] are dense, `bias` is [N] or null, `is_bf16`
// tells bfloat16 from float32, and `num_threads` is how many threads may work.

// --- attention/attention.cpp

// Strides and head sizes count elements, other sizes tokens. `query` is [num_tokens, heads,
// head_size], the last dimension dense, and so on for `key` and `value`; `keys` and `values` are the
// store's, [num_blocks, block_size, kv_heads, head size], dense. Null `values`: they are the first
// elements of the keys. Null `key`: nothing is written. Unless `number` (of numbers.h) is 0 these are
// bytes, whose scales are [num_blocks, block_size, kv_heads]. `window_size` and `chunk_size` both zero: all is seen.
QUIRE_STRUCT(AttentionCall,
    const void *query, *key, *value;
    void* out;  // [num_tokens, heads, v_head_size]
    char *keys, *values;
    bf16 *key_scales, *value_scales;
    const float* sinks;    // [heads], or null
    const int64_t* slots;  // [num_tokens]
    const int32_t* table;  // [num_seqs, table_columns]
    const int64_t *query_starts, *context_lens;  // [num_seqs + 1], [num_seqs]
    char* scratch;         // what quire_attend_scratch says
    int64_t query_token_stride, query_head_stride, key_token_stride, key_head_stride;
    int64_t value_token_stride, value_head_stride, table_stride, table_columns;
    int64_t num_tokens, num_seqs, num_blocks, block_size;
    int64_t heads, kv_heads, head_size, v_head_size;
    int64_t window_size, chunk_size, is_bf16, number, num_threads;
    double scale, softcap;
)

// Writes K and V of the step, and attends. Returns 0, or 1 where a slot or an entry of a block table
// that is to be used lies outside of the store: then nothing has been read or written.
QUIRE_FUNCTION(int, quire_attend, (const AttentionCall* call))
// Returns the bytes of scratch for this call.
QUIRE_FUNCTION(int64_t, quire_attend_scratch, (const AttentionCall* call))
// Returns bytes of scratch that suffice for all calls of as many K/V heads, tokens and threads, with
// contexts of up to table_columns * block_size tokens. Reads no memory but the call.
QUIRE_FUNCTION(int64_t, quire_attend_most_scratch, (const AttentionCall* call))

// --- linear/bf16_storage.cpp: float32 by weights that bfloat16 holds

// Whether bfloat16 holds all of these numbers.
QUIRE_FUNCTION(bool, quire_bf16_storage_fits, (const uint32_t* weight, int64_t count))
// packed: ceil(N / 32) * K * 32 bfloat16 numbers.
QUIRE_FUNCTION(void, quire_bf16_storage_pack,
               (const uint32_t* weight, int64_t n, int64_t k, uint16_t* packed,
                int64_t num_threads))
// y = x W^T + bias.
QUIRE_FUNCTION(void, quire_bf16_storage,
               (const float* x, int64_t m, const void* packed, const float* bias, int64_t n,
                int64_t k, float* y, int64_t num_threads))
// Looks up rows of W: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_bf16_storage_rows,
               (const int64_t* indices, int64_t count, const uint16_t* packed, int64_t n,
                int64_t k, uint32_t* y))

// --- linear/quantised/w8a32.cpp: float32 by int8 weights, widened

// Quantises and packs. packed: ceil(N / 32) * (4 + K) * 32 bytes.
QUIRE_FUNCTION(void, quire_w8a32_pack,
               (const float* weight, int64_t n, int64_t k, char* packed, int64_t num_threads))
// y = x W^T + bias.
QUIRE_FUNCTION(void, quire_w8a32,
               (const float* x, int64_t m, const void* packed, const float* bias, int64_t n,
                int64_t k, float* y, int64_t num_threads))
// Looks up rows of W, dequantised: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_w8a32_rows,
               (const int64_t* indices, int64_t count, const char* packed, int64_t n, int64_t k,
                float* y))

// --- linear/quantised/grouped.cpp: float32 by small integers with a scale for each group of columns

// K is a multiple of `group_size`, that one of 8; `num_bits` is 4 or 8, `scale_bytes` 2 (half) or 4.
// `num_rows` are those from the panel on that are of this form: the first panel of a weight says it.
QUIRE_STRUCT(PanelForm,
    int64_t group_size, num_bits, scale_bytes, has_offsets, num_rows;
)

// Returns the bytes of a panel of 32 rows of W.
QUIRE_FUNCTION(int64_t, quire_grouped_panel_bytes, (const PanelForm* form, int64_t k))
// packed: ceil(N / 32) panels. `numbers` are [N, K], `scales` and `offsets` (or null) [N, groups].
// Numbers of four bits are -8 to 7 without offsets, and 0 to 15 with them.
QUIRE_FUNCTION(void, quire_grouped_pack,
               (const PanelForm* form, const int8_t* numbers, const void* scales,
                const void* offsets, int64_t n, int64_t k, char* packed, int64_t num_threads))
// y = x W^T + bias.
QUIRE_FUNCTION(void, quire_grouped,
               (const float* x, int64_t m, const void* packed, const float* bias, int64_t n,
                int64_t k, float* y, int64_t num_threads))
// Looks up rows of W: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_grouped_rows,
               (const int64_t* indices, int64_t count, const char* packed, int64_t n, int64_t k,
                float* y))

// --- linear/quantised/group_weights.cpp: floats become small integers with a scale for each group

// `group_size` is 32 at most. Of four bits numbers are 0 to 15 and have offsets, of eight bits -127 to
// 127, and `offsets` is null. Scales and offsets are halves, and NaN where a number is not finite.
QUIRE_FUNCTION(void, quire_group_weights,
               (const float* weight, int64_t n, int64_t k, int64_t group_size, int64_t num_bits,
                int8_t* numbers, void* scales, void* offsets, int64_t num_threads))

// --- linear/quantised/w8a8.cpp: int8 weights by x quantised to int8 (dot)

// Quantises and packs. packed: ceil(N / 16) * (ceil(K / 4) + 1) * 64 bytes; 9 instead of 1 if there are
// outliers. outliers: 16 columns, then as many bits as columns, up to a multiple of 32: whether a column
// is none of them; null if there are none.
QUIRE_FUNCTION(void, quire_w8a8_pack,
               (const void* weight, bool is_bf16, const int32_t* outliers, int64_t n, int64_t k,
                uint8_t* packed, int64_t num_threads))
// Returns the bytes of scratch for one row of x.
QUIRE_FUNCTION(int64_t, quire_w8a8_scratch, (int64_t k))
// y = x W^T + bias.
QUIRE_FUNCTION(void, quire_w8a8,
               (const void* x, bool is_bf16, int64_t m, const uint8_t* packed,
                const int32_t* outliers, const void* bias, int64_t n, int64_t k, void* y,
                char* scratch, int64_t num_threads))
// Looks up rows of W, dequantised: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_w8a8_rows,
               (const int64_t* indices, int64_t count, const uint8_t* packed,
                const int32_t* outliers, bool is_bf16, int64_t n, int64_t k, void* y))

// --- linear/quantised/w4a8.cpp: weights of four bits by x quantised to int8 (dot)

// Returns the lines of 64 bytes of a panel of 16 rows of W, without its outliers.
QUIRE_FUNCTION(int64_t, quire_w4a8_lines, (int64_t k))
// Quantises and packs. importance: of the squared error of each column; null if none is known. packed:
// ceil(N / 16) panels.
QUIRE_FUNCTION(void, quire_w4a8_pack,
               (const void* weight, bool is_bf16, const int32_t* outliers, const float* importance,
                int64_t n, int64_t k, uint8_t* packed, int64_t num_threads))
// y = x W^T + bias, with the scratch of w8a8.
QUIRE_FUNCTION(void, quire_w4a8,
               (const void* x, bool is_bf16, int64_t m, const uint8_t* packed,
                const int32_t* outliers, const void* bias, int64_t n, int64_t k, void* y,
                char* scratch, int64_t num_threads))
// Looks up rows of W, dequantised: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_w4a8_rows,
               (const int64_t* indices, int64_t count, const uint8_t* packed,
                const int32_t* outliers, bool is_bf16, int64_t n, int64_t k, void* y))

// --- linear/compressed_bf16.cpp: bfloat16 by weights in 12 bits (dot)

// Writes the heads of the panels, a line for each 32 rows of W. Returns the bytes that `packed` takes.
QUIRE_FUNCTION(int64_t, quire_compressed_bf16_heads,
               (const uint16_t* weight, int64_t n, int64_t k, void* heads, int64_t num_threads))
// packed: begins with its heads.
QUIRE_FUNCTION(void, quire_compressed_bf16_pack,
               (const uint16_t* weight, int64_t n, int64_t k, void* packed, int64_t num_threads))
// Returns the bytes of scratch for x.
QUIRE_FUNCTION(int64_t, quire_compressed_bf16_scratch, (int64_t m, int64_t k))
// y = x W^T + bias.
QUIRE_FUNCTION(void, quire_compressed_bf16,
               (const uint16_t* x, int64_t m, const void* packed, const uint16_t* bias, int64_t n,
                int64_t k, uint16_t* y, void* scratch, int64_t num_threads))
// Computes a gated MLP (tiles): W has I = N / 2 rows of gates, then I of values; `down` is [width, I].
// Results are equal to those of single calls to the bit, except for NaN. `gated` is memory for [M, I],
// M rounded up to BLOCK_ROWS. Returns false, and does nothing, if gates do not end where a panel does.
QUIRE_FUNCTION(bool, quire_compressed_bf16_mlp,
               (const uint16_t* x, int64_t m, const void* packed, const uint16_t* bias, int64_t n,
                int64_t k, int64_t act, const void* down, const uint16_t* down_bias,
                int64_t width, uint16_t* gated, uint16_t* y, void* scratch, int64_t num_threads))
// Looks up rows of W: y [count, K]. Returns false if an index is not below N.
QUIRE_FUNCTION(bool, quire_compressed_bf16_rows,
               (const int64_t* indices, int64_t count, const void* packed, int64_t n, int64_t k,
                uint16_t* y))

// --- decoder/fused.cpp: what is between linear layers; `act` is 0 for SiLU, 1 for GELU by tanh

// Whether rows may be of this dtype.
QUIRE_FUNCTION(bool, quire_fused_takes, (bool is_bf16))
// out [rows, width] = RMSNorm(x + added) * weight (Zhang and Sennrich, 2019); the sum is left in x.
// Null `added`: x is read only. kind: 0 rounds x before it is multiplied, 1 multiplies by weight + 1.
QUIRE_FUNCTION(void, quire_norm,
               (bool is_bf16, void* x, const void* added, const void* weight, int64_t rows,
                int64_t width, double epsilon, int64_t kind, void* out, int64_t num_threads))
// Rotates the first `rotary` elements of each head (RoPE, Su et al., 2021; in halves, as Llama), in
// place: rows of `stride` elements that begin with query heads, one each `query_stride`, and then key
// heads, `head` wide. Each head is normalised before, where it has a weight.
QUIRE_FUNCTION(void, quire_rope,
               (bool is_bf16, void* x, int64_t rows, int64_t stride, int64_t query_heads,
                int64_t query_stride, int64_t key_heads, int64_t head, const void* cos, const void* sin, int64_t rotary,
                const void* query_weight, const void* key_weight, double query_epsilon,
                double key_epsilon, int64_t kind, int64_t num_threads))
// out [rows, width] = act(x[:, :width]) * x[:, width:].
QUIRE_FUNCTION(void, quire_gate,
               (bool is_bf16, const void* x, int64_t rows, int64_t width, int64_t act, void* out,
                int64_t num_threads))
// x [rows, heads, head] *= sigmoid(gates), where rows and heads of the gates lie strides apart.
QUIRE_FUNCTION(void, quire_gate_heads,
               (bool is_bf16, void* x, const void* gates, int64_t rows, int64_t heads, int64_t head,
                int64_t row_stride, int64_t head_stride, int64_t num_threads))
// out [rows, width] = a * b, whose rows lie strides apart.
QUIRE_FUNCTION(void, quire_product,
               (bool is_bf16, const void* a, int64_t a_stride, const void* b, int64_t b_stride,
                int64_t rows, int64_t width, void* out, int64_t num_threads))
// out [rows, width] = a + b.
QUIRE_FUNCTION(void, quire_sum,
               (bool is_bf16, const void* a, const void* b, int64_t rows, int64_t width, void* out,
                int64_t num_threads))

// --- recurrent/: layers with a state in place of K and V; strides count elements, and what follows a
// stride is dense

// The P pieces of a step in S sequences.
QUIRE_STRUCT(StatePieces,
    const int32_t *starts, *reads, *writes, *sequences;  // [P + 1], [P], [P], [S + 1]
    int64_t num_pieces, num_seqs, num_tokens;
)

// One part of the states of a layer: the first of each begins `stride` after that of the one before.
QUIRE_STRUCT(StateStore,
    float* states;
    int64_t num_states, stride;
)

// All functions that take a call return 0, or 1 where a piece lies outside of the tokens or a state
// outside of the store: then nothing has been read or written. Its scratch is as many bytes as the
// function beside it returns, for each of the threads.

// --- recurrent/convolution.cpp

QUIRE_STRUCT(ConvolutionCall,
    const StatePieces* pieces;
    const StateStore* store;  // [channels, width - 1]
    const void *rows, *weight, *bias;  // [num_tokens, channels], [channels, width], [channels] or null
    void* out;                // [num_tokens, channels]
    void* scratch;
    int64_t row_stride, channels, width, is_activated, is_bf16, num_threads;
)

QUIRE_FUNCTION(int64_t, quire_convolution_scratch, (const ConvolutionCall* call))
// Causal convolution, through SiLU if `is_activated`.
QUIRE_FUNCTION(int, quire_convolution, (const ConvolutionCall* call))

// --- recurrent/delta_rule.cpp

QUIRE_STRUCT(DeltaRuleCall,
    const StatePieces* pieces;
    const StateStore* store;         // [heads, key_size, value_size]
    const void *query, *key, *value; // [num_tokens, key_heads, key_size], [num_tokens, heads, value_size]
    const float* decay;              // the logarithm: [num_tokens, heads], or [.., heads, key_size]
    const void* beta;                // [num_tokens, heads]
    void* out;                       // [num_tokens, heads, value_size]
    void* scratch;
    int64_t query_stride, key_stride, value_stride, decay_stride, beta_stride;
    int64_t key_heads, heads, key_size, value_size, is_by_channel, is_bf16, num_threads;
)

QUIRE_FUNCTION(int64_t, quire_delta_rule_scratch, (const DeltaRuleCall* call))
// The gated delta rule (Yang et al., 2024) over normalised queries and keys.
QUIRE_FUNCTION(int, quire_delta_rule, (const DeltaRuleCall* call))

// --- recurrent/delta_net.cpp

// The outputs of the convolution are the rule's queries, keys and values, side by side; `decays` and
// `opened` are its decay and beta.
QUIRE_STRUCT(DeltaNetCall,
    const ConvolutionCall* convolution;
    const DeltaRuleCall* rule;
    const void *steps, *betas, *gate;     // [num_tokens, heads] twice, [num_tokens, heads, value_size]
    const float *step_bias, *log_rates;   // [heads]
    const float* norm_weight;             // [value_size]
    float* decays;                        // [num_tokens, heads]
    void* opened;                         // [num_tokens, heads]
    int64_t step_stride, beta_stride, gate_stride, is_product_rounded;
    double beta_scale, epsilon;
)

// A gated delta net between its projections: decay = -exp(log_rates) * softplus(steps + step_bias),
// beta = sigmoid(betas) * beta_scale, and for each head RMSNorm(out) * norm_weight * SiLU(gate).
QUIRE_FUNCTION(int, quire_delta_net, (const DeltaNetCall* call))

// --- recurrent/scans.cpp

// Steps are [num_tokens, heads] and rates [heads], or if `is_selective` [num_tokens, channels] and
// [channels, state_size], where channels are heads * head_size; so is `skip`, or null.
QUIRE_STRUCT(ScanCall,
    const StatePieces* pieces;
    const StateStore* store;  // [heads, head_size, state_size]
    const void *rows, *b, *c; // [num_tokens, channels], [num_tokens, groups, state_size]
    const float *steps, *rates, *skip;
    void* out;                // [num_tokens, channels]
    void* scratch;
    int64_t row_stride, step_stride, b_stride, c_stride;
    int64_t heads, head_size, groups, state_size, is_selective, is_bf16, num_threads;
)

QUIRE_FUNCTION(int64_t, quire_scan_scratch, (const ScanCall* call))
// The state space of Mamba-2 (Dao and Gu, 2024), or if `is_selective` that of Mamba (Gu and Dao, 2023).
QUIRE_FUNCTION(int, quire_scan, (const ScanCall* call))

// --- decoder/decoder.cpp

QUIRE_STRUCT(LinearWeight,
    const void *packed, *bias;
    int64_t num_rows, num_columns;
    int64_t num_bits;  // of a quantised weight; 16: in 16 bits or fewer; 0: in groups
    const int32_t* outliers;  // of w8a8 and w4a8; null: none
)

QUIRE_STRUCT(NormWeight,
    const void* weight;  // null: none
    double epsilon;
    int64_t kind;
)

// y = x + attended(mixer(before(x))), then y + finished(mlp(between(y))), where these are norms.
// The mixer is attention, a gated delta net or a short convolution: one of the calls, with what stays
// the same from step to step; the others are null. `qkv` are all projections of its input. Those of a
// delta net begin with the rows of its convolution, those of a short convolution are the gate before
// it, the one behind it and its rows, and of gated attention a gate follows each head's query.
QUIRE_STRUCT(DecoderLayer,
    LinearWeight qkv, out, gate_up, down;
    NormWeight before, attended, between, finished, query, key;
    const AttentionCall* attention;
    const DeltaNetCall* delta_net;
    const ConvolutionCall* convolution;
    int64_t query_heads, head_size, is_gated;  // of attention
    int64_t group, rotary;                     // its block table, its rotary embeddings
    int64_t gate_at, beta_at, step_at;         // of a delta net, in elements
    int64_t act;
)

// The slots and the rows of one block table.
QUIRE_STRUCT(GroupTables,
    const int64_t* slots;
    const int32_t* table;
    int64_t table_stride, table_columns;
)

QUIRE_STRUCT(RotaryTables,
    const void *cos, *sin;  // [num_tokens, rotary_dim]
    int64_t rotary_dim;
)

QUIRE_STRUCT(DecoderCall,
    const DecoderLayer* layers;
    const GroupTables* groups;
    const RotaryTables* rotary;
    char* states;                   // [num_tokens, hidden_size], overwritten
    char* out;                      // [num_logits, hidden_size]
    const int64_t* logits_indices;  // [num_logits], rising
    const int64_t *query_starts, *context_lens;
    const StatePieces* pieces;      // null: no layer has a state
    char* scratch;
    NormWeight last;
    int64_t num_layers, hidden_size, num_tokens, num_logits, num_seqs, is_bf16, num_threads;
)

// Returns the bytes of scratch for this step.
QUIRE_FUNCTION(int64_t, quire_decoder_scratch, (const DecoderCall* call))
// Returns 0, or 1 where a slot, a block or a state that is to be used lies outside of a store, or a
// piece outside of the tokens.
QUIRE_FUNCTION(int, quire_decoder, (const DecoderCall* call))

// --- sampling/sampling.cpp

// The sampling parameters of a row. Temperature 0: the likeliest; top_k of the whole vocabulary,
// top_p 1, log_min_p -inf: off; num_top -1: no log probabilities.
QUIRE_STRUCT(RowParams,
    double noise, temperature, top_k, top_p, log_min_p, num_top;
)

QUIRE_STRUCT(SamplingCall,
    const void* logits;           // [num_rows, vocab_size], rows `row_stride` apart
    const RowParams* params;      // [num_rows]; null: nothing is sampled, tokens are scored
    const int64_t* edit_starts;   // [num_rows + 1] among the edits; null: none
    const int64_t* edit_ids;
    const float* edit_values;     // logits instead of the model's
    const int64_t* mask_indices;  // [num_rows] among the masks, -1: the row has none; null: none
    const uint32_t* masks;        // [any, ceil(vocab_size / 32)], the bits of tokens allowed
    int64_t* token_ids;           // [num_rows], sampled or given; -1: nothing can be sampled
    double* logprobs;             // [num_rows]
    int64_t* top_ids;             // [num_rows, max_top]
    double* top_logprobs;
    char* memory;                 // what quire_sampling_memory says for each thread
    int64_t num_rows, row_stride, vocab_size, max_top, is_bf16, num_threads;
)

// Returns the bytes of memory for one thread, aligned to 8.
QUIRE_FUNCTION(int64_t, quire_sampling_memory, (const SamplingCall* call))
// Samples a token of each row, or scores the given ones. Returns 0.
QUIRE_FUNCTION(int, quire_sample, (const SamplingCall* call))
