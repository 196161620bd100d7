// The pieces of a step's rows, and how the work on them is shared out among threads.
#pragma once

#include "common/ranges.h"
#include "recurrent/numbers.h"

namespace {

constexpr int64_t MIN_PARALLEL = 1 << 17;  // elements of states, once for each token
constexpr int64_t TASKS_A_THREAD = 4;      // so that none waits long for the last
constexpr int64_t TOKENS = 16;             // whose inputs are prepared at once

inline bool rises(const int32_t* offsets, int64_t count, int64_t last) {
    for (int64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1]) return false;
    return offsets[0] == 0 && offsets[count] == last;
}

// Whether all pieces lie within the tokens, and all states within the store.
inline bool are_within(const StatePieces& pieces, const StateStore& store) {
    for (int64_t i = 0; i < pieces.num_pieces; i++)
        if (pieces.reads[i] < 0 || pieces.reads[i] >= store.num_states || pieces.writes[i] < 1 ||
            pieces.writes[i] >= store.num_states)
            return false;
    return rises(pieces.starts, pieces.num_pieces, pieces.num_tokens) &&
           rises(pieces.sequences, pieces.num_seqs, pieces.num_pieces);
}

// One piece, with the states that it begins and ends with.
struct Piece {
    int64_t first, num_tokens;
    const float* read;
    float* write;
};

inline Piece piece_at(const StatePieces& pieces, const StateStore& store, int64_t index) {
    const int64_t first = pieces.starts[index];
    return {first, pieces.starts[index + 1] - first,
            store.states + pieces.reads[index] * store.stride,
            store.states + pieces.writes[index] * store.stride};
}

// `act(piece)` for all pieces of a sequence, in order.
template <class Act>
void each_piece(const StatePieces& pieces, const StateStore& store, int64_t sequence, Act act) {
    for (int64_t i = pieces.sequences[sequence]; i < pieces.sequences[sequence + 1]; i++)
        act(piece_at(pieces, store, i));
}

// `act(first, count)` for the tokens of a piece by TOKENS; once for a piece without any.
template <class Act>
void each_block(int64_t num_tokens, Act act) {
    int64_t first = 0;
    do {
        act(first, smaller(TOKENS, num_tokens - first));
        first += TOKENS;
    } while (first < num_tokens);
}

// Into how many parts each of `count` things of `size` units is cut, so that threads have enough.
inline int64_t num_parts(int64_t count, int64_t size, int64_t num_threads) {
    if (num_threads == 1) return 1;
    return larger(1, smaller(size, ratio_up(TASKS_A_THREAD * num_threads, larger(count, 1))));
}

// Threads that go through `count` tasks, each with `scratch_bytes` of its own from `scratch` on.
template <class Act>
struct Tasks {
    Ranges ranges;
    int64_t count;
    char* scratch;
    int64_t scratch_bytes, num_workers;
    Act act;

    static void work(void* given) {
        Tasks& tasks = *(Tasks*)given;
        WithoutDenormals off;
        const int64_t worker = __atomic_fetch_add(&tasks.num_workers, 1, __ATOMIC_RELAXED);
        char* own = tasks.scratch + worker * tasks.scratch_bytes;
        do_share(tasks.ranges, tasks.count, [&](int64_t task) { tasks.act(task, own); });
    }
};

// `act(task, scratch)` for `count` tasks on up to `num_threads` threads, or on one for little work.
template <class Act>
void share_tasks(int64_t count, int64_t work, int64_t num_threads, void* scratch,
                 int64_t scratch_bytes, Act act) {
    const int64_t threads = work < MIN_PARALLEL ? 1 : smaller(num_threads, larger(count, 1));
    Tasks<Act> tasks = {Ranges(smaller(threads, MAX_RANGES)), count, (char*)scratch,
                        scratch_bytes, 0, act};
    in_parallel(threads, Tasks<Act>::work, &tasks);
}

}  // namespace
