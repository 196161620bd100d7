// A gated delta net between its projections, in one call: the convolution of queries, keys and
// values, the gates, the delta rule, and the gated norm of each head. Numbers are rounded where
// transformers rounds them.
#include "recurrent/functions.h"
#include "recurrent/pieces.h"

namespace {

constexpr int64_t ROWS_AT_ONCE = 8;  // of a task

template <class Stored>
inline floats rounded_as(floats x) {
    Stored lanes[LANES];
    put_row(lanes, x);
    return take_row(lanes);
}

// The decays and betas of a token's heads.
template <class Stored>
__attribute__((noinline)) void open_gates(const DeltaNetCall& call, int64_t token) {
    const int64_t heads = call.rule->heads;
    const Stored* steps = (const Stored*)call.steps + token * call.step_stride;
    const Stored* betas = (const Stored*)call.betas + token * call.beta_stride;
    float* decays = call.decays + token * heads;
    Stored* opened = (Stored*)call.opened + token * heads;
    for (int64_t at = 0; at < heads; at += LANES) {
        const int64_t count = heads - at;
        floats step = softplus(take_row(steps + at, count) + take_row(call.step_bias + at, count));
        floats rate = exponential(take_row(call.log_rates + at, count)) * -1.0f;
        put_row(decays + at, rate * step, count);
        floats beta = rounded_as<Stored>(sigmoid(take_row(betas + at, count)));
        put_row(opened + at, beta * float(call.beta_scale), count);
    }
}

// The heads of a token's outputs are normed, and gated by SiLU.
template <class Stored>
__attribute__((noinline)) void close_gates(const DeltaNetCall& call, int64_t token) {
    const int64_t heads = call.rule->heads, size = call.rule->value_size;
    const Stored* gates = (const Stored*)call.gate + token * call.gate_stride;
    Stored* out = (Stored*)call.rule->out + token * heads * size;
    for (int64_t head = 0; head < heads; head++, gates += size, out += size) {
        floats squares = {};
        for (int64_t at = 0; at < size; at += LANES) {
            const floats each = take_row(out + at, size - at);
            squares = multiply_add(each, each, squares);
        }
        const float mean = total(squares) / float(size);
        const floats factor = splat(1.0f / __builtin_sqrtf(mean + float(call.epsilon)));
        for (int64_t at = 0; at < size; at += LANES) {
            const int64_t count = size - at;
            floats each = rounded_as<Stored>(take_row(out + at, count) * factor);
            each *= take_row(call.norm_weight + at, count);
            if (call.is_product_rounded) each = rounded_as<Stored>(each);
            put_row(out + at, each * silu<float>(take_row(gates + at, count)), count);
        }
    }
}

// `act(call, token)` for all tokens.
void each_token(const DeltaNetCall& call, void (*act)(const DeltaNetCall&, int64_t)) {
    const int64_t num_tokens = call.rule->pieces->num_tokens;
    share_tasks(ratio_up(num_tokens, ROWS_AT_ONCE),
                num_tokens * call.rule->heads * call.rule->value_size, call.rule->num_threads,
                nullptr, 0, [&](int64_t task, char*) {
                    const int64_t first = task * ROWS_AT_ONCE;
                    for (int64_t i = first; i < smaller(first + ROWS_AT_ONCE, num_tokens); i++)
                        act(call, i);
                });
}

}  // namespace

extern "C" int quire_delta_net(const DeltaNetCall* given) {
    const DeltaNetCall& call = *given;
    if (!are_within(*call.rule->pieces, *call.rule->store) || quire_convolution(call.convolution))
        return 1;
    of_stored(call.rule->is_bf16, [&](auto of) {
        typedef decltype(of) T;
        each_token(call, open_gates<T>);
        quire_delta_rule(call.rule);
        each_token(call, close_gates<T>);
    });
    return 0;
}
