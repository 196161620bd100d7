// y = x W^T + bias for many rows of x, by tiles.
//
// A task is some rows of x by some panels. It goes through their columns stretch by stretch: a
// panel's is decoded once into the first-level cache, for all rows, while those lie in the second.
// Between stretches sums wait in memory. Meanwhile the next stretch of weights is fetched, and at no
// other time: lines fetched for later would push out what is in use.
#pragma once

#include "panels.h"

namespace {

constexpr int64_t STRETCH_CHUNKS = 8;
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t MAX_TASK_PANELS = 8;
// Of a row of x, from which on rows crowd the same few places of the cache: fewer rows then.
constexpr int64_t CROWDING_BYTES = 4096;
constexpr int64_t TASKS_PER_THREAD = 2;

struct Linear : LinearProduct {
    int64_t task_rows, num_blocks, num_groups;  // of rows, of panels
    int64_t num_tasks, next_task;

    int64_t unit() const { return num_couples ? 2 : 1; }  // panels that stay together
};

// A thread's own: a panel's stretch, and the sums of a task.
struct alignas(LINE) Space {
    Chunk chunks[STRETCH_CHUNKS];
    Sums sums[MAX_TASK_PANELS][MAX_TASK_ROWS / BLOCK_ROWS];
};

// Lines to be read later, `num_bytes` at once, or LEAST_BYTES, which the compiler unrolls.
struct Lines {
    static constexpr int64_t LEAST_BYTES = 2 * LINE;
    const uint8_t *next, *end;
    int64_t num_bytes;

    template <bool ARE_LEAST>
    __attribute__((always_inline)) inline void fetch() {
        if (next >= end) return;
        const int64_t size = ARE_LEAST ? LEAST_BYTES : num_bytes;
#pragma GCC unroll 2
        for (int64_t i = 0; i < size; i += LINE) __builtin_prefetch(next + i, 0, 2);
        next += size;
    }
};

// Chunks of a panel. `place`: of the panel, in an order in which couples stand together.
struct Stretch {
    int64_t place, panel, begin, end;
};

// Of x, in a block.
struct RowRange {
    int64_t first, count;
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
        return {cursor.at, cursor.at + (s.end - s.begin) * CHUNK_STEPS * CODED_BYTES, 0};
    }

    void decode(const Stretch& s) {
        Cursor cursor = weights.panel(s.panel, s.begin * CHUNK_STEPS);
        for (int64_t i = s.begin; i < s.end; i++)
            ::decode<false>(weights, cursor, i * CHUNK, space.chunks[i - s.begin]);
    }

    // Rows by a stretch. Its own function, so that what its loop takes is in registers.
    template <bool HAS_LOWER, bool ARE_LEAST>
    __attribute__((noinline)) void add(const RowRange& rows, const Stretch& s, Lines& lines,
                                       const Sums& from, Sums& to) {
        const int64_t k = weights.num_columns;
        const Block block(l.x + rows.first * k, rows.count, k);
        const Chunk* chunk = space.chunks;
        Lines ahead = lines;
        s.begin ? load_sums<HAS_LOWER>(from, PANEL) : clear_sums();
        for (int64_t i = s.begin; i < s.end; i++) {
            ahead.fetch<ARE_LEAST>();
            block.add<HAS_LOWER>(*chunk++, i * CHUNK);
        }
        lines = ahead;
        store_sums<HAS_LOWER>(to, PANEL);
    }

    // Complete sums, but for gates, to where they go. `before`: of the panel before.
    void put(const RowRange& rows, const Stretch& s, const Sums& before, const Sums& sums) {
        uint16_t* y = l.y + rows.first * l.width();
        if (!l.num_couples)
            return put_sums(weights, s.panel, sums, rows.count, y + s.panel * PANEL, l.width());
        const Couple couple = {s.panel - l.num_couples, s.panel, l.act};
        put_gated(weights, couple, before, sums, rows.count, y + couple.gates * PANEL, l.width());
    }

    // The rows of a task by a stretch, whose panel is its `own`th; meanwhile another's are fetched.
    void add(const Stretch& s, Lines lines, int64_t first, int64_t end, int64_t own) {
        const int64_t num_adds = ratio_up(end - first, BLOCK_ROWS) * (s.end - s.begin);
        const bool is_gate = l.num_couples && s.place % 2 == 0;
        const bool is_complete = s.end == num_chunks(weights) && !is_gate;
        alignas(LINE) Sums last;
        lines.num_bytes = round_up(ratio_up(lines.end - lines.next, num_adds), LINE);
        decode(s);
        for (int64_t row = first; row < end; row += BLOCK_ROWS) {
            const RowRange rows = {row, smaller(BLOCK_ROWS, end - row)};
            const int64_t i = (row - first) / BLOCK_ROWS;
            const Sums& from = space.sums[own][i];
            Sums& to = is_complete ? last : space.sums[own][i];
            tiles.shape(rows.count);
            if (rows.count <= TILE_ROWS)
                add<false, false>(rows, s, lines, from, to);
            else if (lines.num_bytes > Lines::LEAST_BYTES)
                add<true, false>(rows, s, lines, from, to);
            else
                add<true, true>(rows, s, lines, from, to);
            if (is_complete) put(rows, s, space.sums[larger(own - 1, 0)][i], last);
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
        const auto at = [&](int64_t i, int64_t place) {
            return stretch(place, count * i / num_stretches, count * (i + 1) / num_stretches);
        };
        for (int64_t i = 0; i < num_stretches; i++)
            for (int64_t place = from; place < upto; place++) {
                const bool is_last = place + 1 == upto;
                Lines lines = {};
                if (!is_last || i + 1 < num_stretches)
                    lines = lines_of(at(i + is_last, is_last ? from : place + 1));
                add(at(i, place), lines, first, end, place - from);
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
