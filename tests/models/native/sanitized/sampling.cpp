// Random calls of the sampler over memory of the exact size: whatever is read or written beyond it,
// the sanitizer tells. Logits are rubbish now and then.
#include "sampling/sampling.cpp"
//
#include "sanitized.h"

namespace {

float logit() {
    if (below(50000) == 0) return below(2) ? INFINITE : INFINITE - INFINITE;
    if (below(20) == 0) return -INFINITE;
    return float(below(4000)) / 400 - 5;
}

RowParams some_params(const SamplingCall& call) {
    static const double TEMPERATURES[] = {0, 1e-20, 0.5, 1, 1e20}, TOP_PS[] = {0, 0.1, 0.9, 1};
    RowParams params = {};
    params.noise = double(below(1000)) / 1000;
    params.temperature = TEMPERATURES[below(5)];
    params.top_k = double(below(2) ? call.vocab_size : 1 + below(call.vocab_size));
    params.top_p = TOP_PS[below(4)];
    params.log_min_p = below(2) ? -double(INFINITE) : -double(below(30));
    params.num_top = double(below(call.max_top + 2) - 1);
    return params;
}

void run_one() {
    static const int64_t SIZES[] = {1, 17, 127, 128, 129, 1000, 20000};
    SamplingCall call{};
    call.vocab_size = call.row_stride = SIZES[below(7)];
    call.num_rows = 1 + below(6);
    call.max_top = below(3) ? below(smaller(call.vocab_size, 9)) : call.vocab_size;
    call.is_bf16 = below(2);
    call.num_threads = 1 + below(3);
    int64_t num_logits = call.num_rows * call.vocab_size;
    float* wide = zeros<float>(num_logits);
    bf16* narrow = zeros<bf16>(num_logits);
    RowParams* params = zeros<RowParams>(call.num_rows);
    int64_t* starts = zeros<int64_t>(call.num_rows + 1);
    int64_t* ids = zeros<int64_t>(call.num_rows);
    float* values = zeros<float>(call.num_rows);
    call.token_ids = zeros<int64_t>(call.num_rows);
    for (int64_t i = 0; i < num_logits; i++) {
        wide[i] = logit();
        store_as(narrow + i, wide[i]);
    }
    for (int64_t i = 0; i < call.num_rows; i++) {
        params[i] = some_params(call);
        starts[i + 1] = starts[i] + below(2);
        ids[i] = below(call.vocab_size);
        values[i] = logit();
        call.token_ids[i] = below(call.vocab_size);
    }
    call.logits = call.is_bf16 ? (void*)narrow : (void*)wide;
    call.params = below(4) ? params : nullptr;
    call.edit_starts = call.params && below(2) ? starts : nullptr;
    call.edit_ids = ids;
    call.edit_values = values;
    call.logprobs = zeros<double>(call.num_rows);
    call.top_ids = zeros<int64_t>(call.num_rows * call.max_top);
    call.top_logprobs = zeros<double>(call.num_rows * call.max_top);
    int64_t num_bytes = quire_sampling_memory(&call);
    call.memory = zeros<char>(num_bytes * call.num_threads);
    if (quire_sample(&call)) abort();
    for (int64_t i = 0; i < call.num_rows; i++)
        if (call.token_ids[i] < -1 || call.token_ids[i] >= call.vocab_size) abort();
    const void* taken[] = {wide,   narrow,         params,         starts,       ids,
                           values, call.token_ids, call.logprobs, call.top_ids, call.top_logprobs,
                           call.memory};
    give_back(taken);
}

}  // namespace
