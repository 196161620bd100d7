// Random heads, channels and pieces, with rows apart and states of the exact size.
#include "recurrent/scans.cpp"
//
#include "states.h"

namespace {

template <class Stored>
void run() {
    const int64_t num_tokens = 1 + below(40);
    ScanCall call = {};
    call.is_selective = below(2);
    call.groups = call.is_selective ? 1 : 1 + below(2);
    call.heads = call.is_selective ? 1 : call.groups * (1 + below(3));
    call.head_size = 1 + below(call.is_selective ? 600 : 70);
    call.state_size = 1 + below(40);
    call.is_bf16 = sizeof(Stored) == 2;
    call.num_threads = 1 + below(4);
    const int64_t channels = call.heads * call.head_size, shared = call.groups * call.state_size;
    const int64_t steps = call.is_selective ? channels : call.heads;
    call.row_stride = channels + below(20);
    call.step_stride = steps + below(20);
    call.b_stride = shared + below(20);
    call.c_stride = shared + below(20);
    RandomStates states(num_tokens, channels * call.state_size);
    call.pieces = &states.pieces;
    call.store = &states.store;
    call.rows = rows_of<Stored>(num_tokens, channels, call.row_stride);
    call.steps = rows_of<float>(num_tokens, steps, call.step_stride);
    call.b = rows_of<Stored>(num_tokens, shared, call.b_stride);
    call.c = rows_of<Stored>(num_tokens, shared, call.c_stride);
    call.rates = rows_of<float>(1, call.is_selective ? channels * call.state_size : call.heads, 0);
    call.skip = below(2) ? rows_of<float>(1, steps, 0) : nullptr;
    call.out = zeros<Stored>(num_tokens * channels);
    call.scratch = zeros<char>(quire_scan_scratch(&call) * call.num_threads);
    if (quire_scan(&call)) abort();
    const void* taken[] = {call.rows,  call.steps, call.b,   call.c,
                           call.rates, call.skip,  call.out, call.scratch};
    give_back(taken);
}

void run_one() { below(2) ? run<float>() : run<bf16>(); }

}  // namespace
