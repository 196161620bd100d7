// y = x W^T + bias for many rows of x, by tiles.
//
// A task is some rows of x by some panels. It goes through their columns stretch by stretch: a
// panel's is decoded once into the first-level cache, for all rows, while those lie in the second.
// Between stretches sums wait in memory. Meanwhile the next stretch of weights is fetched.
#pragma once

#include "panels.h"

namespace {

constexpr int64_t STRETCH_CHUNKS = 8;
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t MAX_TASK_PANELS = 8;
// Of a row of x, from which on rows crowd the same few places of the cache: fewer rows then.
constexpr int64_t CROWDING_BYTES = 4096;
constexpr int64_t TASKS_PER_THREAD = 2;
constexpr int64_t FETCHED_AT_ONCE = 2;  // lines for each chunk

struct Linear : LinearProduct {
    int64_t task_rows, num_blocks, num_groups;  // of rows, of panels
    int64_t num_tasks, next_task;

    int64_t unit() const { return num_couples ? 2 : 1; }  // panels that stay together
};

constexpr int64_t SUMS_OF_PANEL = MAX_TASK_ROWS * PANEL;

// A thread's own: a panel's stretch, and the sums of a task.
struct alignas(LINE) Space {
    Chunk chunks[STRETCH_CHUNKS];
    float sums[MAX_TASK_PANELS][SUMS_OF_PANEL];
};

// Lines to be read later.
struct Lines {
    const uint8_t *next, *end;

    __attribute__((always_inline)) inline void fetch() {
        if (next >= end) return;
#pragma GCC unroll 2
        for (int64_t i = 0; i < FETCHED_AT_ONCE; i++) __builtin_prefetch(next + i * LINE, 0, 2);
        next += FETCHED_AT_ONCE * LINE;
    }
};

// Chunks of a panel. `place`: of the panel, in an order in which couples stand together.
struct Stretch {
    int64_t place, panel, begin, end;
};

struct Worker {
    const Linear& l;
    const Weights& weights;
    Space& space;
    Tiles tiles;

    Stretch stretch(int64_t place, int64_t begin, int64_t end) const {
        const int64_t couples = l.num_couples;
        return {place, couples ? place / 2 + place % 2 * couples : place, begin, end};
    }

    Lines lines_of(const Stretch& s) const {
        const Cursor cursor = weights.panel(s.panel, s.begin * CHUNK_STEPS);
        return {cursor.at, cursor.at + (s.end - s.begin) * CHUNK_STEPS * CODED_BYTES};
    }

    void decode(const Stretch& s) {
        Cursor cursor = weights.panel(s.panel, s.begin * CHUNK_STEPS);
        for (int64_t i = s.begin; i < s.end; i++)
            ::decode(weights, cursor, i * CHUNK, space.chunks[i - s.begin]);
    }

    template <bool HAS_LOWER>
    void add(const Block& block, const Stretch& s, Lines& lines, float* sums, int64_t row) {
        s.begin ? load_sums<HAS_LOWER>(sums, PANEL) : clear_sums();
        Lines ahead = lines;
        for (int64_t i = s.begin; i < s.end; i++) {
            ahead.fetch();
            block.add<HAS_LOWER>(space.chunks[i - s.begin], i * CHUNK);
        }
        lines = ahead;
        const bool is_gate = l.num_couples && s.place % 2 == 0;
        if (is_gate || s.end < num_chunks(weights)) return store_sums<HAS_LOWER>(sums, PANEL);
        uint16_t* y = l.y + row * l.width();
        if (!l.num_couples)
            return put_sums<HAS_LOWER>(weights, s.panel, block.num_rows, y + s.panel * PANEL,
                                       l.width());
        const int64_t gates = s.panel - l.num_couples;
        put_gated<HAS_LOWER>(weights, {gates, s.panel, l.act}, sums - SUMS_OF_PANEL,
                             block.num_rows, y + gates * PANEL, l.width());
    }

    // The rows of a task by a stretch; `sums`: the first block's.
    void add(const Stretch& s, Lines lines, int64_t first, int64_t end, float* sums) {
        const int64_t k = weights.num_columns;
        decode(s);
        for (int64_t row = first; row < end; row += BLOCK_ROWS, sums += BLOCK_ROWS * PANEL) {
            const Block block(l.x + row * k, smaller(BLOCK_ROWS, end - row), k);
            tiles.shape(block.num_rows);
            block.has_lower() ? add<true>(block, s, lines, sums, row)
                              : add<false>(block, s, lines, sums, row);
        }
    }

    void act(int64_t task) {
        const int64_t first = task % l.num_blocks * l.task_rows;
        const int64_t end = smaller(first + l.task_rows, l.num_rows);
        const int64_t group = task / l.num_blocks, unit = l.unit();
        const int64_t num_units = weights.num_panels() / unit;
        const int64_t from = num_units * group / l.num_groups * unit;
        const int64_t upto = num_units * (group + 1) / l.num_groups * unit;
        const int64_t count = num_chunks(weights), num_stretches = ratio_up(count, STRETCH_CHUNKS);
        for (int64_t i = 0; i < num_stretches; i++) {
            const int64_t begin = count * i / num_stretches;
            const int64_t stop = count * (i + 1) / num_stretches;
            for (int64_t place = from; place < upto; place++) {
                const Stretch next = stretch(smaller(place + 1, upto - 1), begin, stop);
                add(stretch(place, begin, stop), lines_of(next), first, end,
                    space.sums[place - from]);
            }
        }
    }
};

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    Space space;
    Worker worker{l, l.weights, space, {}};
    int64_t task;
    while ((task = __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED)) < l.num_tasks)
        worker.act(task);
}

// More than MAX_PANEL_ROWS rows of x, which are shared out too where there are few panels.
inline void multiply_many(const LinearProduct& product, int64_t num_threads) {
    Linear l = {};
    (LinearProduct&)l = product;
    const int64_t num_panels = l.weights.num_panels(), num_units = num_panels / l.unit();
    const bool is_crowded = l.weights.num_columns * 2 % CROWDING_BYTES == 0;
    const int64_t least_blocks = ratio_up(l.num_rows, MAX_TASK_ROWS >> is_crowded);
    const int64_t num_wanted = num_threads > 1 ? TASKS_PER_THREAD * num_threads : 1;
    const int64_t num_blocks = larger(
        least_blocks, smaller(ratio_up(l.num_rows, BLOCK_ROWS), ratio_up(num_wanted, num_units)));
    const int64_t least_groups =
        larger(ratio_up(num_panels, MAX_TASK_PANELS), ratio_up(num_wanted, num_blocks));
    l.task_rows = round_up(ratio_up(l.num_rows, num_blocks), BLOCK_ROWS);
    l.num_blocks = ratio_up(l.num_rows, l.task_rows);
    l.num_groups = smaller(round_up(least_groups, num_threads), num_units);
    l.num_tasks = l.num_groups * l.num_blocks;
    in_parallel(smaller(num_threads, l.num_tasks), do_tasks, &l);
}

}  // namespace
