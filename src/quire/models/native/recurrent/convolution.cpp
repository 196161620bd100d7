// Causal convolution of rows, each channel with weights of its own, through SiLU if that is wanted.
//
// A task takes a block of channels through the tokens of some sequences. Weights and states lie
// channel by channel, and are turned so that a vector holds neighbouring channels. An output is the
// bias and then the products, added in the order of time, wherever a piece begins.
#include "recurrent/pieces.h"
#include "recurrent/turning.h"

namespace {

constexpr int64_t CHANNELS = 256;  // of a block

// The scratch of a thread. The last rows of a state come before those of TOKENS tokens.
struct Scratch {
    Arena arena;
    float *weights, *bias, *rows;  // [width, CHANNELS], [CHANNELS], [width - 1 + TOKENS, CHANNELS]

    Scratch(const ConvolutionCall& call, char* base)
        : arena{base, 0}, weights(arena.take<float>(call.width * CHANNELS)),
          bias(arena.take<float>(CHANNELS)),
          rows(arena.take<float>((call.width - 1 + TOKENS) * CHANNELS)) {}
};

// WIDTH: the width of the call, or 0 for any.
template <class Stored, int WIDTH>
struct Convolution {
    const ConvolutionCall& call;
    int64_t first, count;  // channels
    const Scratch& scratch;

    int64_t width() const { return WIDTH ? WIDTH : call.width; }

    void take_weights() const {
        alignas(LINE) float lying[LANES * (WIDTH ? WIDTH : 1)] = {};
        const Stored* weights = (const Stored*)call.weight + first * width();
        for (int64_t at = 0; at < count; at += LANES, weights += LANES * width()) {
            const int64_t group = smaller(count - at, LANES);
            if (WIDTH && group == LANES) {
                for (int64_t i = 0; i < WIDTH; i++)
                    store(lying + i * LANES, take_row(weights + i * LANES, LANES));
                turn_apart<WIDTH>(lying, scratch.weights + at, CHANNELS);
                continue;
            }
            for (int64_t channel = 0; channel < group; channel++)
                for (int64_t tap = 0; tap < width(); tap++)
                    scratch.weights[tap * CHANNELS + at + channel] =
                        to_float(weights[channel * width() + tap]);
        }
        for (int64_t at = 0; at < count; at += LANES)
            store(scratch.bias + at,
                  call.bias ? take_row((const Stored*)call.bias + first + at, count - at) : floats{});
    }

    // The state's rows before those of tokens.
    void take_state(const float* state) const {
        const int64_t kept = width() - 1;
        for (int64_t at = 0; at < count; at += LANES) {
            const float* from = state + (first + at) * kept;
            const int64_t group = smaller(count - at, LANES);
            if (WIDTH && group == LANES) {
                turn_apart<WIDTH ? WIDTH - 1 : 0>(from, scratch.rows + at, CHANNELS);
                continue;
            }
            for (int64_t channel = 0; channel < group; channel++)
                for (int64_t row = 0; row < kept; row++)
                    scratch.rows[row * CHANNELS + at + channel] = from[channel * kept + row];
        }
    }

    // The first rows of the scratch become the state.
    void put_state(float* state) const {
        const int64_t kept = width() - 1;
        for (int64_t at = 0; at < count; at += LANES) {
            float* to = state + (first + at) * kept;
            const int64_t group = smaller(count - at, LANES);
            if (WIDTH && group == LANES) {
                turn_together<WIDTH ? WIDTH - 1 : 0>(scratch.rows + at, CHANNELS, to);
                continue;
            }
            for (int64_t channel = 0; channel < group; channel++)
                for (int64_t row = 0; row < kept; row++)
                    to[channel * kept + row] = scratch.rows[row * CHANNELS + at + channel];
        }
    }

    // The outputs of tokens whose rows are in the scratch.
    __attribute__((noinline)) void convolve(int64_t token, int64_t num_tokens) const {
        for (int64_t at = 0; at < count; at += LANES) {
            const float *rows = scratch.rows + at, *weights = scratch.weights + at;
            Stored* out = (Stored*)call.out + token * call.channels + first + at;
            const floats bias = load(scratch.bias + at);
            for (int64_t i = 0; i < num_tokens; i++, rows += CHANNELS, out += call.channels) {
                floats sum = bias;
                for (int64_t tap = 0; tap < width(); tap++)
                    sum = multiply_add(load(weights + tap * CHANNELS), load(rows + tap * CHANNELS),
                                       sum);
                put_row(out, call.is_activated ? silu<Stored>(sum) : sum, count - at);
            }
        }
    }

    void run_block(int64_t token, int64_t num_tokens) const {
        const int64_t kept = width() - 1;
        for (int64_t i = 0; i < num_tokens; i++) {
            const Stored* row = (const Stored*)call.rows + (token + i) * call.row_stride + first;
            for (int64_t at = 0; at < count; at += LANES)
                store(scratch.rows + (kept + i) * CHANNELS + at, take_row(row + at, count - at));
        }
        convolve(token, num_tokens);
        memmove(scratch.rows, scratch.rows + num_tokens * CHANNELS,
                size_t(kept * CHANNELS) * sizeof(float));
    }

    void run(int64_t sequence) const {
        each_piece(*call.pieces, *call.store, sequence, [&](const Piece& piece) {
            take_state(piece.read);
            each_block(piece.num_tokens, [&](int64_t token, int64_t num_tokens) {
                run_block(piece.first + token, num_tokens);
            });
            put_state(piece.write);
        });
    }
};

template <class Stored, int WIDTH>
void run_call(const ConvolutionCall& call) {
    const int64_t num_blocks = ratio_up(call.channels, CHANNELS), num_seqs = call.pieces->num_seqs;
    const int64_t parts = num_parts(num_blocks, num_seqs, call.num_threads);
    share_tasks(num_blocks * parts, call.pieces->num_tokens * call.channels * call.width,
                call.num_threads, call.scratch, quire_convolution_scratch(&call),
                [&](int64_t task, char* own) {
                    const int64_t part = task % parts, first = task / parts * CHANNELS;
                    const Scratch scratch(call, own);
                    const Convolution<Stored, WIDTH> convolution = {
                        call, first, smaller(call.channels - first, CHANNELS), scratch};
                    convolution.take_weights();
                    for (int64_t i = part * num_seqs / parts; i < (part + 1) * num_seqs / parts; i++)
                        convolution.run(i);
                });
}

}  // namespace

extern "C" int64_t quire_convolution_scratch(const ConvolutionCall* call) {
    return Scratch(*call, nullptr).arena.num_bytes;
}

extern "C" int quire_convolution(const ConvolutionCall* given) {
    const ConvolutionCall& call = *given;
    if (!are_within(*call.pieces, *call.store)) return 1;
    of_stored(call.is_bf16, [&](auto of) {
        typedef decltype(of) T;
        if (call.width == 4)
            run_call<T, 4>(call);
        else if (call.width == 3)
            run_call<T, 3>(call);
        else
            run_call<T, 0>(call);
    });
    return 0;
}
