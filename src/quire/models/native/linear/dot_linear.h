// y = x W^T + bias for many rows of x, by dot products in vector registers.
//
// A tile keeps the sums of up to 6 rows by a group of two panels in registers. The first tile
// decodes a stretch of the group, for those that follow as well, and meanwhile all of them fetch
// the next one into the cache, evenly spread, so that memory and arithmetic overlap.
#pragma once

#include "linear/dot_panels.h"

namespace {

constexpr int VECTORS = 2 * PANEL_VECTORS;
constexpr int64_t GROUP = 2 * PANEL;  // rows of W in a tile
constexpr int MAX_ROWS = 6;           // rows of x in a tile
constexpr int64_t MAX_TILES = 42;     // tiles in a block of rows
constexpr int64_t MAX_SUMS = MAX_ROWS * GROUP;
constexpr int64_t STRETCH_STEPS = 256;
constexpr int64_t MAX_FETCHING = 8;  // tiles of a block that fetch
constexpr int64_t TASKS_PER_THREAD = 4;
// So many bytes before a cursor the cache is filled from the next outer one.
constexpr int64_t NEAR = 768;

struct Linear : LinearProduct {
    int64_t block_rows;
    int64_t num_blocks;
    int64_t num_stretches;
    int64_t num_tasks;
    int64_t next_task;

    int64_t num_groups() const { return ratio_up(weights.num_rows, GROUP); }
};

// The pairs of a group from `begin` to before `end`. The cursors of its panels are at the begin.
struct Stretch {
    int64_t group, begin, end;
    Cursor panels[2];

    int64_t num_bytes() const { return (end - begin) * CODED_BYTES / STEP_PAIRS; }
};

// The product of some rows of x by a stretch. Between stretches the sums wait in memory. For each
// pair `fetch` bytes of the stretch `after` are fetched, from `fetched` on.
struct Tile {
    const Stretch &stretch, &after;
    int64_t row;
    uint32_t* pairs;  // decoded, [end - begin, GROUP]
    float* sums;
    int64_t fetched, fetch;
};

template <int ROWS>
__attribute__((always_inline)) inline void begin(const Weights& weights, const Tile& t,
                                                 __m512 (&sums)[ROWS][VECTORS]) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        __m512 bias = bias_of(weights, t.stretch.group * GROUP + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++)
            sums[r][v] = t.stretch.begin ? _mm512_load_ps(t.sums + r * GROUP + v * LANES) : bias;
    }
}

template <int ROWS>
__attribute__((always_inline)) inline void end(const Linear& l, const Tile& t,
                                               const __m512 (&sums)[ROWS][VECTORS]) {
    const int64_t n = l.weights.num_rows;
    bool is_last = t.stretch.end == l.weights.num_pairs();
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            int64_t row = t.stretch.group * GROUP + v * LANES;
            if (is_last)
                put(l.y + (t.row + r) * n + row, sums[r][v], n - row);
            else
                _mm512_store_ps(t.sums + r * GROUP + v * LANES, sums[r][v]);
        }
}

// Decodes a step of a panel to its place among those of its group.
__attribute__((always_inline)) inline void decode(Cursor& panel, uint32_t* pairs) {
    __m512i vectors[STEP_PAIRS * PANEL_VECTORS];
    panel.fetch<1>(NEAR);
    panel.take(vectors);
#pragma GCC unroll 4
    for (int v = 0; v < STEP_PAIRS * PANEL_VECTORS; v++)
        _mm512_store_si512(pairs + v / PANEL_VECTORS * GROUP + v % PANEL_VECTORS * LANES,
                           vectors[v]);
}

template <int ROWS, bool IS_FIRST>
__attribute__((noinline)) void add_tile(const Linear& l, const Tile& t) {
    const int64_t k = l.weights.num_columns;
    const uint16_t* x = l.x + t.row * k;
    const uint8_t* ahead = t.after.panels[0].at + t.fetched;
    const uint8_t* next = t.after.panels[1].at + t.fetched;
    uint32_t* pairs = t.pairs;
    Cursor panel = t.stretch.panels[0], next_panel = t.stretch.panels[1];
    __m512 sums[ROWS][VECTORS];
    begin(l.weights, t, sums);
    const auto add = [&](int64_t i, bool is_whole) __attribute__((always_inline)) {
        if (IS_FIRST && i % STEP_PAIRS == 0) {
            decode(panel, pairs);
            decode(next_panel, pairs + PANEL);
        }
        add_pair(sums, (const __m512i*)pairs, x + 2 * i, k, is_whole);
    };
    const int64_t whole = smaller(t.stretch.end, k / 2);
    for (int64_t i = t.stretch.begin; i < whole; i++, pairs += GROUP) {
        if (t.fetch) {
            __builtin_prefetch(ahead, 0, 2);
            __builtin_prefetch(next, 0, 2);
            ahead += t.fetch;
            next += t.fetch;
        }
        add(i, true);
    }
    if (whole < t.stretch.end) add(whole, false);
    end(l, t, sums);
}

typedef void (*AddTile)(const Linear&, const Tile&);

const AddTile ADD_TILE[MAX_ROWS] = {add_tile<1, false>, add_tile<2, false>, add_tile<3, false>,
                                    add_tile<4, false>, add_tile<5, false>, add_tile<6, false>};
const AddTile ADD_FIRST_TILE[MAX_ROWS] = {add_tile<1, true>, add_tile<2, true>, add_tile<3, true>,
                                          add_tile<4, true>, add_tile<5, true>, add_tile<6, true>};

// The memory of a thread: the pairs of a stretch, and the sums of a block's tiles.
struct alignas(LINE) Space {
    uint32_t pairs[STRETCH_STEPS * STEP_PAIRS * GROUP];
    float sums[MAX_TILES * MAX_SUMS];
};

// Adds the products of a stretch by the rows of x from `first` on, shared out evenly among the
// tiles.
void add_stretch(const Linear& l, const Stretch& s, const Stretch& after, int64_t first,
                 Space& space) {
    const int64_t num_rows = smaller(l.block_rows, l.num_rows - first);
    const int64_t num_tiles = ratio_up(num_rows, MAX_ROWS);
    const int64_t num_fetching = smaller(num_tiles, MAX_FETCHING), ahead = after.num_bytes();
    for (int64_t i = 0; i < num_tiles; i++) {
        const int64_t from = num_rows * i / num_tiles, upto = num_rows * (i + 1) / num_tiles;
        Tile tile{s, after, first + from, space.pairs, space.sums + i * MAX_SUMS, 0, 0};
        if (i < num_fetching) {
            tile.fetched = ahead * i / num_fetching;
            tile.fetch = ratio_up(ahead, num_fetching * (s.end - s.begin));
        }
        (i ? ADD_TILE : ADD_FIRST_TILE)[upto - from - 1](l, tile);
    }
}

Stretch stretch_of(const Linear& l, int64_t task, int64_t i) {
    const int64_t num_steps = l.weights.num_steps(), group = task / l.num_blocks;
    const int64_t begin = num_steps * i / l.num_stretches;
    const int64_t end = num_steps * (i + 1) / l.num_stretches * STEP_PAIRS;
    return {group,
            begin * STEP_PAIRS,
            smaller(end, l.weights.num_pairs()),
            {l.weights.panel(2 * group, begin), l.weights.panel(2 * group + 1, begin)}};
}

// Multiplies one block of rows by one group; `next` is the task after it.
void do_task(const Linear& l, int64_t task, int64_t next, Space& space) {
    const int64_t first = task % l.num_blocks * l.block_rows;
    for (int64_t i = 0; i < l.num_stretches; i++) {
        const bool is_last = i + 1 == l.num_stretches;
        const Stretch after = is_last ? stretch_of(l, next, 0) : stretch_of(l, task, i + 1);
        add_stretch(l, stretch_of(l, task, i), after, first, space);
    }
}

int64_t claim(Linear& l) { return __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED); }

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    Space space;
    for (int64_t task = claim(l), next; task < l.num_tasks; task = next) {
        next = claim(l);
        do_task(l, task, smaller(next, l.num_tasks - 1), space);
    }
}

// Cuts rows into blocks where there are too few groups to share, or too many sums for one block.
void plan(Linear& l, int64_t num_threads) {
    int64_t num_wanted = num_threads > 1 ? TASKS_PER_THREAD * num_threads : 1;
    int64_t num_groups = l.num_groups(), num_tiles = ratio_up(l.num_rows, MAX_ROWS);
    int64_t num_blocks = smaller(num_tiles, ratio_up(num_wanted, num_groups));
    l.block_rows = smaller(ratio_up(num_tiles, num_blocks), MAX_TILES) * MAX_ROWS;
    l.num_blocks = ratio_up(l.num_rows, l.block_rows);
    l.num_stretches = ratio_up(l.weights.num_steps(), STRETCH_STEPS);
    l.num_tasks = num_groups * l.num_blocks;
    l.next_task = 0;
}

// Multiplies more than MAX_PANEL_ROWS rows of x.
inline void multiply_many(const LinearProduct& product, int64_t num_threads) {
    Linear l = {};
    (LinearProduct&)l = product;
    plan(l, num_threads);
    in_parallel(smaller(num_threads, l.num_tasks), do_tasks, &l);
}

}  // namespace
