// Random channels, widths and pieces, with rows apart and states of the exact size.
#include "recurrent/convolution.cpp"
//
#include "states.h"

namespace {

template <class Stored>
void run() {
    const int64_t num_tokens = 1 + below(40);
    ConvolutionCall call = {};
    call.channels = 1 + below(600);
    call.width = 1 + below(6);
    call.is_activated = below(2);
    call.is_bf16 = sizeof(Stored) == 2;
    call.num_threads = 1 + below(4);
    call.row_stride = call.channels + below(20);
    RandomStates states(num_tokens, call.channels * (call.width - 1));
    call.pieces = &states.pieces;
    call.store = &states.store;
    call.rows = rows_of<Stored>(num_tokens, call.channels, call.row_stride);
    call.weight = rows_of<Stored>(1, call.channels * call.width, 0);
    call.bias = below(2) ? rows_of<Stored>(1, call.channels, 0) : nullptr;
    call.out = zeros<Stored>(num_tokens * call.channels);
    call.scratch = zeros<char>(quire_convolution_scratch(&call) * call.num_threads);
    if (quire_convolution(&call)) abort();
    const void* taken[] = {call.rows, call.weight, call.bias, call.out, call.scratch};
    give_back(taken);
}

void run_one() { below(2) ? run<float>() : run<bf16>(); }

}  // namespace
