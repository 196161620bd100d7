// Random heads and pieces, with rows apart and states of the exact size.
#include "recurrent/delta_rule.cpp"
//
#include "states.h"

namespace {

template <class Stored>
void run() {
    const int64_t num_tokens = 1 + below(40), key_heads = 1 + below(2);
    DeltaRuleCall call = {};
    call.key_heads = key_heads;
    call.heads = key_heads * (1 + below(3));
    call.key_size = 1 + below(70);
    call.value_size = 1 + below(70);
    call.is_by_channel = below(2);
    call.is_bf16 = sizeof(Stored) == 2;
    call.num_threads = 1 + below(4);
    const int64_t of_keys = key_heads * call.key_size, of_values = call.heads * call.value_size;
    const int64_t decays = call.heads * (call.is_by_channel ? call.key_size : 1);
    call.query_stride = of_keys + below(20);
    call.key_stride = of_keys + below(20);
    call.value_stride = of_values + below(20);
    call.decay_stride = decays + below(20);
    call.beta_stride = call.heads + below(20);
    RandomStates states(num_tokens, call.heads * call.key_size * call.value_size);
    call.pieces = &states.pieces;
    call.store = &states.store;
    call.query = rows_of<Stored>(num_tokens, of_keys, call.query_stride);
    call.key = rows_of<Stored>(num_tokens, of_keys, call.key_stride);
    call.value = rows_of<Stored>(num_tokens, of_values, call.value_stride);
    call.decay = rows_of<float>(num_tokens, decays, call.decay_stride);
    call.beta = rows_of<Stored>(num_tokens, call.heads, call.beta_stride);
    call.out = zeros<Stored>(num_tokens * of_values);
    call.scratch = zeros<char>(quire_delta_rule_scratch(&call) * call.num_threads);
    if (quire_delta_rule(&call)) abort();
    const void* taken[] = {call.query, call.key, call.value, call.decay,
                           call.beta,  call.out, call.scratch};
    give_back(taken);
}

void run_one() { below(2) ? run<float>() : run<bf16>(); }

}  // namespace
