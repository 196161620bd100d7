// Random calls of attention over memory of the exact size: whatever is read or written beyond it,
// the sanitizer tells. Block tables are rubbish where no query sees.
#include "attention/attention.cpp"
//
#include "sanitized.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {8, 33, 64, 80, 256}, SIZES[] = {1, 3, 16, 33};
    Call call{};
    call.is_bf16 = below(2);
    call.number = below(2) ? AS_COMPUTED : below(2) ? INT8 : FP8_E4M3;
    call.kv_heads = 1 + below(3);
    call.heads = call.kv_heads * (1 + below(17));
    call.head_size = WIDTHS[below(5)];
    call.v_head_size = WIDTHS[below(5)];
    call.block_size = SIZES[below(4)];
    if (below(3) == 0) call.window_size = 1 + below(90);
    else if (below(2)) call.chunk_size = 1 + below(90);
    call.softcap = below(2);
    call.scale = 0.1;
    call.num_threads = 1 + below(4);
    call.num_seqs = 1 + below(4);
    bool is_latent = call.v_head_size <= call.head_size && below(3) == 0;
    int64_t* starts = zeros<int64_t>(call.num_seqs + 1);
    int64_t* lens = zeros<int64_t>(call.num_seqs);
    int64_t longest = 0;
    for (int64_t i = 0; i < call.num_seqs; i++) {
        int64_t num_new = below(2) ? 1 : 1 + below(90);
        starts[i + 1] = starts[i] + num_new;
        lens[i] = num_new + below(900);
        longest = larger(longest, lens[i]);
    }
    call.num_tokens = starts[call.num_seqs];
    call.table_columns = call.table_stride = (longest + call.block_size - 1) / call.block_size;
    call.num_blocks = 1 + call.num_seqs * call.table_columns;
    int32_t* table = zeros<int32_t>(call.num_seqs * call.table_columns);
    int64_t* slots = zeros<int64_t>(call.num_tokens);
    for (int64_t i = 0; i < call.num_seqs; i++) {
        int64_t num_new = starts[i + 1] - starts[i];
        int64_t first = call.first_seen(lens[i] - num_new) / call.block_size;
        int32_t* row = table + i * call.table_columns;
        for (int64_t j = 0; j < call.table_columns; j++) {
            bool is_seen = j >= first && j * call.block_size < lens[i];
            row[j] = is_seen ? int32_t(call.num_blocks - 1 - i * call.table_columns - j)
                             : int32_t(0x7fffffff);
        }
        for (int64_t j = 0; j < num_new; j++) {
            int64_t position = lens[i] - num_new + j, block = position / call.block_size;
            slots[starts[i] + j] = block < first ? 0
                                                 : row[block] * call.block_size +
                                                       position % call.block_size;
        }
    }
    int64_t size = call.element_bytes(), tokens = call.num_tokens;
    int64_t kept = call.num_blocks * call.block_size * call.kv_heads;
    call.query_head_stride = call.key_head_stride = call.head_size;
    call.value_head_stride = call.v_head_size;
    call.query_token_stride = call.heads * call.head_size;
    call.key_token_stride = call.kv_heads * call.head_size;
    call.value_token_stride = call.kv_heads * call.v_head_size;
    call.query = zeros<char>(tokens * call.query_token_stride * size);
    call.key = zeros<char>(tokens * call.key_token_stride * size);
    call.value = zeros<char>(tokens * call.value_token_stride * size);
    call.out = zeros<char>(tokens * call.heads * call.v_head_size * size);
    call.keys = zeros<char>(kept * call.head_size * call.kept_bytes());
    call.values = is_latent ? nullptr : zeros<char>(kept * call.v_head_size * call.kept_bytes());
    bool is_scaled = call.number != AS_COMPUTED;
    call.key_scales = is_scaled ? zeros<bf16>(kept) : nullptr;
    call.value_scales = is_scaled && !is_latent ? zeros<bf16>(kept) : nullptr;
    call.sinks = below(2) ? zeros<float>(call.heads) : nullptr;
    call.slots = slots;
    call.table = table;
    call.query_starts = starts;
    call.context_lens = lens;
    int64_t num_bytes = quire_attend_scratch(&call);
    call.scratch = (char*)aligned_alloc(64, size_t(num_bytes));
    if (quire_attend(&call)) abort();
    call.table_columns = 0;
    if (!quire_attend(&call)) abort();
    const void* taken[] = {call.query, call.key, call.value, call.out, call.keys, call.values,
                           call.key_scales, call.value_scales, call.sinks, slots, table, starts,
                           lens, call.scratch};
    give_back(taken);
}

}  // namespace
