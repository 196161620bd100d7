// Scans of state spaces, token by token: S = d S + (step * row) (x) B; out = S C + skip * row.
//
// A state has a row of numbers for each channel of the layer, and channels need no others. The
// decay d is one number of a head (Mamba-2), or exp(step * rate) of every number (Mamba). A task
// takes groups of LANES channels of a head through all tokens of a sequence. The sums over a row go
// lane by lane and then over the lanes, for all channels of a group at once.
#include "recurrent/pieces.h"

namespace {

constexpr int ROWS = 4;                // channels that go through a row's numbers together
constexpr int64_t MAX_CHANNELS = 256;  // of a task
constexpr int64_t SELECTION_WORK = 4;  // of an element with a decay of its own, in others

// What the tokens of a block share among the channels of a task. `selected` are steps [TOKENS,
// channels] where each channel has its own; else `decays` has one number for each token.
struct Prepared {
    int64_t width, channels;  // padded to LANES
    float *b, *c;             // [TOKENS, width]
    float *rows, *added;      // [TOKENS, channels]: added = step * row
    float *selected, *decays;

    Prepared(Arena& arena, int64_t width, int64_t channels)
        : width(round_up(width, LANES)), channels(round_up(channels, LANES)),
          b(arena.take<float>(TOKENS * this->width)), c(arena.take<float>(TOKENS * this->width)),
          rows(arena.take<float>(TOKENS * this->channels)),
          added(arena.take<float>(TOKENS * this->channels)),
          selected(arena.take<float>(TOKENS * this->channels)), decays(arena.take<float>(TOKENS)) {}
};

// The whole scratch of a thread: `states` and `rates` have rows padded to LANES, where the call's
// are not.
struct Scratch {
    Arena arena;
    Prepared prepared;
    float *states, *rates;  // [channels, width]

    Scratch(const ScanCall& call, char* base)
        : arena{base, 0}, prepared(arena, call.state_size, smaller(call.head_size, MAX_CHANNELS)),
          states(arena.take<float>(prepared.channels * prepared.width)),
          rates(arena.take<float>(call.is_selective ? prepared.channels * prepared.width : 0)) {}
};

// The channels [first, first + count) of a head.
struct Channels {
    int64_t head, first, count;
};

template <class Stored>
__attribute__((noinline)) void prepare(const ScanCall& call, int64_t token, const Channels& part,
                                       const Prepared& out, int64_t at) {
    const int64_t width = call.state_size, group = part.head / (call.heads / call.groups);
    const Stored* b = (const Stored*)call.b + token * call.b_stride + group * width;
    const Stored* c = (const Stored*)call.c + token * call.c_stride + group * width;
    for (int64_t i = 0; i < width; i += LANES) {
        store(out.b + at * out.width + i, take_row(b + i, width - i));
        store(out.c + at * out.width + i, take_row(c + i, width - i));
    }
    const int64_t channel = part.head * call.head_size + part.first;
    const Stored* rows = (const Stored*)call.rows + token * call.row_stride + channel;
    const float* steps = call.steps + token * call.step_stride;
    steps += call.is_selective ? channel : part.head;
    floats step = splat(*steps);
    if (!call.is_selective)
        out.decays[at] = exponential(step * call.rates[part.head])[0];
    for (int64_t i = 0; i < part.count; i += LANES) {
        const int64_t place = at * out.channels + i;
        floats row = take_row(rows + i, part.count - i);
        if (call.is_selective) step = take_row(steps + i, part.count - i);
        store(out.rows + place, row);
        store(out.selected + place, step);
        store(out.added + place, step * row);
    }
}

// Of LANES vectors the sums over their lanes: lane i is that of the vector i.
template <int STEP>
inline floats sum_lanes(floats (&vectors)[LANES]) {
    if constexpr (STEP > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < STEP; i++) {
            ints a = (ints)vectors[i], b = (ints)vectors[i + STEP];
            swap_blocks<STEP>(a, b, std::make_index_sequence<LANES>());
            vectors[i] = (floats)a + (floats)b;
        }
        return sum_lanes<STEP / 2>(vectors);
    }
    return vectors[0];
}

// The states of a group of channels: rows of a multiple of LANES numbers.
struct Group {
    const float* read;
    float* write;
    const float* rates;  // as the states
};

// ROWS channels of a group take their step together; the sums S C of each lane are left in `outputs`.
template <bool IS_SELECTIVE>
inline void step_rows(const Group group, int64_t width, const float* b, const float* c,
                      const float* added, const float* steps, floats decay, floats* outputs) {
    floats sums[ROWS] = {}, adds[ROWS], row_steps[ROWS];
    for (int row = 0; row < ROWS; row++) {
        adds[row] = splat(added[row]);
        row_steps[row] = splat(steps[row]);
    }
    for (int64_t i = 0; i < width; i += LANES) {
        const floats each_b = load(b + i), each_c = load(c + i);
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            const int64_t place = row * width + i;
            floats each = load(group.read + place);
            if (IS_SELECTIVE)
                each *= exponential(load(group.rates + place) * row_steps[row]);
            else
                each *= decay;
            each = multiply_add(adds[row], each_b, each);
            store(group.write + place, each);
            sums[row] = multiply_add(each, each_c, sums[row]);
        }
    }
    for (int row = 0; row < ROWS; row++) outputs[row] = sums[row];
}

// Returns S C of a token for the channels of the group that begins with `channel` of the task's.
template <bool IS_SELECTIVE>
inline floats step(const Group group, const Prepared& prepared, int64_t at, int64_t channel) {
    const int64_t width = prepared.width, place = at * prepared.channels + channel;
    floats outputs[LANES];
    for (int row = 0; row < LANES; row += ROWS)
        step_rows<IS_SELECTIVE>({group.read + row * width, group.write + row * width,
                                 group.rates + row * width},
                                width, prepared.b + at * width, prepared.c + at * width,
                                prepared.added + place + row, prepared.selected + place + row,
                                splat(prepared.decays[at]), outputs + row);
    return sum_lanes<LANES / 2>(outputs);
}

// Rows of `width` numbers into padded ones; rows beyond `count` are zeros.
void pack(const float* from, int64_t width, int64_t count, int64_t padded, float* packed) {
    memset(packed, 0, size_t(LANES * padded) * sizeof(float));
    for (int64_t row = 0; row < count; row++)
        memcpy(packed + row * padded, from + row * width, size_t(width) * sizeof(float));
}

void unpack(const float* packed, int64_t padded, int64_t count, int64_t width, float* to) {
    for (int64_t row = 0; row < count; row++)
        memcpy(to + row * width, packed + row * padded, size_t(width) * sizeof(float));
}

// A task: channels of one head, through the pieces of a sequence.
template <class Stored>
struct Scan {
    const ScanCall& call;
    Channels part;
    const Scratch& scratch;

    int64_t width() const { return scratch.prepared.width; }

    template <bool IS_SELECTIVE>
    __attribute__((noinline)) void advance(const Group& group, int64_t channel, int64_t first,
                                           int64_t count) const {
        const Prepared& prepared = scratch.prepared;
        const int64_t left = part.count - channel, num_channels = call.heads * call.head_size;
        const int64_t place = part.head * call.head_size + part.first + channel;
        floats skip = {};
        if (call.skip)
            skip = IS_SELECTIVE ? take_row(call.skip + place, left) : splat(call.skip[part.head]);
        Group now = group;
        for (int64_t at = 0; at < count; at++, now.read = now.write) {
            floats out = step<IS_SELECTIVE>(now, prepared, at, channel);
            out = multiply_add(skip, load(prepared.rows + at * prepared.channels + channel), out);
            put_row((Stored*)call.out + (first + at) * num_channels + place, out, left);
        }
    }

    // The tokens [first, first + count) of a piece, for the group that begins with `channel`.
    void run_block(const Piece& piece, int64_t first, int64_t count, int64_t channel) const {
        const int64_t size = call.state_size, rows = smaller(part.count - channel, LANES);
        const int64_t place = (part.head * call.head_size + part.first + channel) * size;
        const bool is_direct = width() == size && rows == LANES && piece.num_tokens > 0;
        float* packed = scratch.states + channel * width();
        Group group = {packed, packed, scratch.rates + channel * width()};
        if (is_direct) {
            group.read = (first ? piece.write : piece.read) + place;
            group.write = piece.write + place;
        } else if (first == 0) {
            pack(piece.read + place, size, rows, width(), packed);
        }
        if (call.is_selective)
            advance<true>(group, channel, piece.first + first, count);
        else
            advance<false>(group, channel, piece.first + first, count);
        if (!is_direct && first + count == piece.num_tokens)
            unpack(packed, width(), rows, size, piece.write + place);
    }

    void pack_rates() const {
        const int64_t size = call.state_size;
        for (int64_t channel = 0; channel < part.count; channel += LANES)
            pack(call.rates + (part.first + channel) * size, size,
                 smaller(part.count - channel, LANES), width(), scratch.rates + channel * width());
    }

    void run(int64_t sequence) const {
        if (call.is_selective) pack_rates();
        each_piece(*call.pieces, *call.store, sequence, [&](const Piece& piece) {
            each_block(piece.num_tokens, [&](int64_t first, int64_t count) {
                for (int64_t at = 0; at < count; at++)
                    prepare<Stored>(call, piece.first + first + at, part, scratch.prepared, at);
                for (int64_t channel = 0; channel < part.count; channel += LANES)
                    run_block(piece, first, count, channel);
            });
        });
    }
};

}  // namespace

extern "C" int64_t quire_scan_scratch(const ScanCall* call) {
    return Scratch(*call, nullptr).arena.num_bytes;
}

extern "C" int quire_scan(const ScanCall* given) {
    const ScanCall& call = *given;
    const StatePieces& pieces = *call.pieces;
    if (!are_within(pieces, *call.store)) return 1;
    const int64_t num_groups = ratio_up(call.head_size, LANES);
    const int64_t num_heads = pieces.num_seqs * call.heads;
    const int64_t parts = larger(num_parts(num_heads, num_groups, call.num_threads),
                                 ratio_up(num_groups, MAX_CHANNELS / LANES));
    const int64_t work = pieces.num_tokens * call.heads * call.head_size * call.state_size *
                         (call.is_selective ? SELECTION_WORK : 1);
    of_stored(call.is_bf16, [&](auto of) {
        share_tasks(num_heads * parts, work, call.num_threads, call.scratch,
                    quire_scan_scratch(given), [&](int64_t task, char* own) {
                        const int64_t part = task % parts, head = task / parts;
                        const int64_t first = part * num_groups / parts * LANES;
                        const int64_t end = smaller((part + 1) * num_groups / parts * LANES,
                                                    call.head_size);
                        Scan<decltype(of)>{call, {head % call.heads, first, end - first},
                                           Scratch(call, own)}
                            .run(head / call.heads);
                    });
    });
    return 0;
}
