// Random heads, with rows apart: the gates before the delta rule and after it. The convolution and
// the rule have drivers of their own.
#include "recurrent/delta_net.cpp"
//
#include "states.h"

extern "C" int quire_convolution(const ConvolutionCall*) { return 0; }
extern "C" int quire_delta_rule(const DeltaRuleCall*) { return 0; }

namespace {

template <class Stored>
void run() {
    const int64_t num_tokens = 1 + below(40), heads = 1 + below(40), size = 1 + below(70);
    RandomStates states(num_tokens, 1);
    DeltaRuleCall rule = {};
    rule.pieces = &states.pieces;
    rule.store = &states.store;
    rule.heads = heads;
    rule.value_size = size;
    rule.is_bf16 = sizeof(Stored) == 2;
    rule.num_threads = 1 + below(4);
    rule.out = rows_of<Stored>(num_tokens, heads * size, heads * size);
    DeltaNetCall call = {};
    call.rule = &rule;
    call.step_stride = heads + below(20);
    call.beta_stride = heads + below(20);
    call.gate_stride = heads * size + below(20);
    call.steps = rows_of<Stored>(num_tokens, heads, call.step_stride);
    call.betas = rows_of<Stored>(num_tokens, heads, call.beta_stride);
    call.gate = rows_of<Stored>(num_tokens, heads * size, call.gate_stride);
    call.step_bias = rows_of<float>(1, heads, 0);
    call.log_rates = rows_of<float>(1, heads, 0);
    call.norm_weight = rows_of<float>(1, size, 0);
    call.decays = zeros<float>(num_tokens * heads);
    call.opened = zeros<Stored>(num_tokens * heads);
    call.is_product_rounded = below(2);
    call.beta_scale = double(1 + below(2));
    call.epsilon = 1e-6;
    if (quire_delta_net(&call)) abort();
    const void* taken[] = {rule.out,       call.steps,       call.betas,  call.gate, call.step_bias,
                           call.log_rates, call.norm_weight, call.decays, call.opened};
    give_back(taken);
}

void run_one() { below(2) ? run<float>() : run<bf16>(); }

}  // namespace
