// Samples one token of each row of logits and scores it, a row at a time in memory that a core's
// cache holds. What is sampled is defined in engine/sampling, truncation.py and weights.py; this is
// the same in one or two passes. All sums are of whole numbers, and a row is one thread's own.
#include "sampling/wide.h"

namespace {

constexpr int64_t NUM_FIRST_SPANS = 64;  // a top-p set is first sought above so many maxima
constexpr int64_t MIN_THREAD_LOGITS = 8192;  // fewer are not worth a thread

struct Shared {
    const SamplingCall* call;
    int64_t next_row, next_worker, worker_bytes;
};

int64_t sample_whole(Row& row, const RowParams& params) {
    float temperature = float(params.temperature);
    row.weigh_spans(temperature);
    Picked span = pick(row.sums, row.num_spans, params.noise);
    const float* lanes = row.logits + span.place * SPAN;
    int32_t ticks[SPAN];
    for (int i = 0; i < SPAN; i += LANES) {
        ints each = ticks_of(load(lanes + i), finite(row.maxima[span.place]), temperature);
        memcpy(ticks + i, &each, sizeof each);
    }
    return span.place * SPAN + pick(ticks, SPAN, span.rest).place;
}

int64_t pick_candidate(const Row& row, double noise) {
    return row.ids[pick(row.among.weights, row.among.count, noise).place];
}

// The first of all is kept even where the target is 0.
void keep_top_p(Row& row, double target) {
    keep_leading(row.among, false, target > 0 ? target : 0.5, row.spare);
}

int64_t sample_bounded(Row& row, const RowParams& params) {
    int64_t top_k = int64_t(params.top_k);
    float temperature = float(params.temperature);
    float least = float(double(row.peak) + double(temperature) * params.log_min_p);
    float least_of_top = row.least_of_top(top_k);
    row.collect(least > least_of_top ? least : least_of_top);
    row.weigh(temperature);
    if (top_k < row.among.count) keep_leading(row.among, true, double(top_k), row.spare);
    if (params.top_p < 1) {
        int64_t all = 0;
        for (int64_t i = 0; i < row.among.count; i++) all += row.among.weights[i];
        keep_top_p(row, params.top_p * double(all));
    }
    return pick_candidate(row, params.noise);
}

// Among the likeliest tokens of few spans, of half of them, or among all: where the top-p set fits.
int64_t sample_top_p(Row& row, const RowParams& params) {
    float temperature = float(params.temperature);
    double target = params.top_p * double(row.weigh_spans(temperature));
    const int64_t ranks[] = {NUM_FIRST_SPANS, larger(row.num_spans / 2, NUM_FIRST_SPANS)};
    for (int64_t rank : ranks) {
        row.collect(row.least_of_top(rank));
        if (double(row.weigh(temperature)) < target) continue;
        keep_top_p(row, target);
        return pick_candidate(row, params.noise);
    }
    return WideTopP{row, temperature, 0}.sample(target, params.noise);
}

int64_t sample(Row& row, const RowParams& params) {
    if (!row.is_finite) return -1;
    if (params.temperature == 0) return likeliest(row.logits, row.vocab_size);
    bool is_bounded = params.top_k < double(row.vocab_size) || params.log_min_p > -INFINITE;
    if (is_bounded) return sample_bounded(row, params);
    return params.top_p < 1 ? sample_top_p(row, params) : sample_whole(row, params);
}

// The logarithm of the sum of exponentials of the row; NaN of one that is not finite.
double log_total(Row& row) {
    if (!row.is_finite) return __builtin_nan("");
    return double(row.peak) + __builtin_log(double(row.weigh_spans(1)) / row.unit());
}

// The likeliest tokens and their log probabilities.
void rank(Row& row, int64_t num_top, double logs, int64_t* ids, double* logprobs) {
    if (num_top == 0) return;
    row.collect(row.is_finite ? row.least_of_top(num_top) : -INFINITE);
    const Tokens& among = row.among;
    uint64_t* items = (uint64_t*)among.weights;
    for (int64_t i = 0; i < among.count; i++)
        items[i] = uint64_t(among.keys[i]) << 32 | row.ids[i];
    sort_by_upper(items, (uint64_t*)row.spare.weights, among.count);
    for (int64_t i = 0; i < smaller(num_top, among.count); i++) {
        ids[i] = int64_t(items[i] & 0xffffffffu);
        logprobs[i] = double(row.logits[ids[i]]) - logs;
    }
}

template <class Stored>
void sample(const SamplingCall& call, int64_t index, Row& row) {
    const Stored* logits = (const Stored*)call.logits + index * call.row_stride;
    const RowParams* params = call.params ? call.params + index : nullptr;
    int64_t num_top = params ? int64_t(params->num_top) : call.max_top;
    int64_t first_edit = 0, num_edits = 0;
    if (call.edit_starts) {
        first_edit = call.edit_starts[index];
        num_edits = call.edit_starts[index + 1] - first_edit;
    }
    int64_t mask_index = call.mask_indices ? call.mask_indices[index] : -1;
    int64_t& token_id = call.token_ids[index];
    bool is_plain = num_edits == 0 && mask_index < 0;
    if (params && params->temperature == 0 && num_top < 0 && is_plain) {
        token_id = likeliest(logits, call.vocab_size);
        return;
    }
    row.take(logits);
    double logs = 0;
    if (num_top >= 0) {
        logs = log_total(row);
        rank(row, num_top, logs, call.top_ids + index * call.max_top,
             call.top_logprobs + index * call.max_top);
    }
    if (num_edits > 0)
        row.edit(call.edit_ids + first_edit, call.edit_values + first_edit, num_edits);
    if (mask_index >= 0) row.mask(call.masks + mask_index * mask_words(call.vocab_size));
    if (params) token_id = sample(row, *params);
    if (num_top >= 0 && token_id >= 0)
        call.logprobs[index] = double(to_float(logits[token_id])) - logs;
}

void work(void* argument) {
    Shared& shared = *(Shared*)argument;
    const SamplingCall& call = *shared.call;
    int64_t worker = __atomic_fetch_add(&shared.next_worker, 1, __ATOMIC_RELAXED);
    Row row(call.vocab_size, call.memory + worker * shared.worker_bytes);
    for (;;) {
        int64_t index = __atomic_fetch_add(&shared.next_row, 1, __ATOMIC_RELAXED);
        if (index >= call.num_rows) return;
        if (call.is_bf16)
            sample<bf16>(call, index, row);
        else
            sample<float>(call, index, row);
    }
}

}  // namespace

extern "C" int64_t quire_sampling_memory(const SamplingCall* call) {
    return Row::memory(call->vocab_size);
}

extern "C" int quire_sample(const SamplingCall* call) {
    Shared shared = {call, 0, 0, Row::memory(call->vocab_size)};
    int64_t worth = call->num_rows * call->vocab_size / MIN_THREAD_LOGITS + 1;
    in_parallel(smaller(smaller(call->num_threads, call->num_rows), worth), work, &shared);
    return 0;
}
