// The products of int8_products.h by tiles, which are the same to the bit: integers are exact, and
// sums of floats run group by group here as well.
//
// A task is some rows of x by some pairs of panels. It goes through their columns stretch by
// stretch: that of a pair lies in the first-level cache for all rows, while sums wait in memory.
// Where all rows are one block, a stretch is the whole pair, and memory is read in its order.
#pragma once

#include "linear/quantised/int8_products.h"
#include "common/tiles.h"

namespace {

constexpr int64_t MIN_ROWS_OF_TILES = 8;
constexpr int64_t PAIR = 2;                // panels
constexpr int64_t CHUNK_STEPS = TILE_ROWS;  // steps of a panel in a tile
constexpr int64_t CHUNK_BYTES = CHUNK_STEPS * LINE;
constexpr int64_t STRETCH_GROUPS = 2;
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t MAX_TASK_PAIRS = 8;
constexpr int64_t TASKS_OF_TILES = 2;  // tasks for each thread
constexpr int64_t AHEAD_CHUNKS = 4;
constexpr int64_t AHEAD_GROUPS = 2;  // of nibbles
constexpr int64_t OUTLIER_BYTES = OUTLIERS * int64_t(sizeof(bf16));

struct TileJob {
    int64_t task_rows, task_pairs, num_blocks, num_tasks, next_task;
};

// The sums of up to BLOCK_ROWS rows by a pair of panels.
struct BlockSums {
    __m512 of[BLOCK_ROWS][PAIR];
};

// The memory of a thread: the sums of a task, and the counts of a group.
struct alignas(LINE) TileSpace {
    BlockSums sums[MAX_TASK_PAIRS][MAX_TASK_ROWS / BLOCK_ROWS];
    Decoded decoded[STRETCH_GROUPS][PAIR];
    int32_t counts[BLOCK_ROWS][PAIR * LANES];
    uint8_t rest[PAIR][CHUNK_BYTES];
};

// The product of `count` rows of x by a pair's groups from `group` on.
struct TileWork {
    int64_t row, count;
    const uint8_t* panels[PAIR];
    int64_t group, num_groups;
    bool is_first;  // the first rows that these groups multiply
    bool is_only;   // there are no others
};

struct TileWorker {
    const Linear& l;
    TileSpace& space;
    Tiles tiles;

    // Copies the last steps of both panels, where they end before a tile does.
    void take_rest(const uint8_t* left, const uint8_t* right, int64_t num_steps) {
        memset(space.rest, 0, sizeof space.rest);
        memcpy(space.rest[0], left, size_t(num_steps) * LINE);
        memcpy(space.rest[1], right, size_t(num_steps) * LINE);
    }

    // Returns where the steps of a group are. Nibbles are decoded for the first rows.
    template <bool IN_NIBBLES>
    __attribute__((always_inline)) const uint8_t* steps(const TileWork& work, int64_t group,
                                                        int64_t v) {
        uint8_t* decoded = space.decoded[work.is_only ? 0 : group - work.group][v].steps;
        if (IN_NIBBLES && !work.is_first) return decoded;
        return l.weights.steps<IN_NIBBLES>(
            work.panels[v], group, decoded, [](const uint8_t* line) {
                __builtin_prefetch(line + AHEAD_GROUPS * GROUP_LINES * LINE, 0, 2);
            });
    }

    // Fetches what is read AHEAD_CHUNKS after `step` from a pair, or from the one behind it.
    __attribute__((always_inline)) inline void fetch(const TileWork& work, int64_t step) const {
        const int64_t ahead = step + AHEAD_CHUNKS * CHUNK_STEPS;
        const int64_t passed = ahead < l.weights.num_steps() ? 0 : l.weights.panel_bytes();
        const int64_t at = (ahead + l.weights.head_lines()) * LINE + passed;
        const uint8_t *left = work.panels[0] + at, *right = work.panels[1] + at;
#pragma GCC unroll 16
        for (int64_t i = 0; i < CHUNK_STEPS; i++) {
            __builtin_prefetch(left + i * LINE, 0, 2);
            __builtin_prefetch(right + i * LINE, 0, 2);
        }
    }

    // Adds the products of a group of columns.
    template <bool HAS_LOWER, bool IN_NIBBLES>
    void add_group(const TileWork& work, int64_t group, BlockSums& sums) {
        const Quantised& rows = l.rows;
        const int64_t row = work.row;
        const int64_t begin = group * GROUP_STEPS;
        const int64_t end = smaller(begin + GROUP_STEPS, l.weights.num_steps());
        const int8_t* x = rows.numbers + row * rows.stride + group * GROUP;
        const uint8_t* left = steps<IN_NIBBLES>(work, group, 0);
        const uint8_t* right = steps<IN_NIBBLES>(work, group, 1);
        clear_sums();
        for (int64_t step = begin; step < end; step += CHUNK_STEPS, x += CHUNK_STEPS * QUAD,
                     left += CHUNK_BYTES, right += CHUNK_BYTES) {
            if (step + CHUNK_STEPS > end) {
                take_rest(left, right, end - step);
                left = space.rest[0];
                right = space.rest[1];
            }
            settle();
            _tile_loadd(6, left, LINE);
            _tile_loadd(4, x, rows.stride);
            _tile_loadd(7, right, LINE);
            _tile_dpbsud(0, 4, 6);
            if (HAS_LOWER) _tile_loadd(5, x + TILE_ROWS * rows.stride, rows.stride);
            _tile_dpbsud(1, 4, 7);
            if (work.is_first && !IN_NIBBLES) fetch(work, step);
            if (!HAS_LOWER) continue;
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        store_sums<HAS_LOWER>(space.counts, PAIR * LANES);
        for (int64_t r = 0; r < work.count; r++) {
            const int64_t at = (row + r) * rows.num_groups + group;
            const __m512i offset = _mm512_set1_epi32(rows.offsets[at]);
            const __m512 scale = _mm512_set1_ps(rows.scales[at]);
#pragma GCC unroll 2
            for (int64_t v = 0; v < PAIR; v++) {
                const __m512i counts = _mm512_load_si512(space.counts[r] + v * LANES);
                const __m512 added = _mm512_cvtepi32_ps(_mm512_add_epi32(counts, offset));
                sums.of[r][v] = _mm512_fmadd_ps(added, scale, sums.of[r][v]);
            }
        }
    }

    void act(const TileJob& job, int64_t task) {
        const int64_t first = task % job.num_blocks * job.task_rows;
        const int64_t end = smaller(first + job.task_rows, l.num_rows);
        const int64_t num_panels = l.weights.num_panels();
        const int64_t from = task / job.num_blocks * job.task_pairs;
        const int64_t upto = smaller(from + job.task_pairs, ratio_up(num_panels, PAIR));
        const bool is_one = end - first <= BLOCK_ROWS;
        const int64_t stretch = is_one ? l.rows.num_groups : STRETCH_GROUPS;
        for (int64_t row = first; row < end; row += BLOCK_ROWS)
            for (int64_t pair = from; pair < upto; pair++)
                begin(row, smaller(BLOCK_ROWS, end - row), pair,
                      space.sums[pair - from][(row - first) / BLOCK_ROWS]);
        for (int64_t g = 0; g < l.rows.num_groups; g += stretch)
            for (int64_t pair = from; pair < upto; pair++) {
                TileWork work = {};
                work.group = g;
                work.num_groups = smaller(stretch, l.rows.num_groups - g);
                for (int64_t v = 0; v < PAIR; v++)
                    work.panels[v] = l.weights.panel(smaller(pair * PAIR + v, num_panels - 1));
                for (int64_t row = first; row < end; row += BLOCK_ROWS) {
                    work.row = row;
                    work.count = smaller(BLOCK_ROWS, end - row);
                    work.is_first = row == first;
                    work.is_only = is_one;
                    add(work, space.sums[pair - from][(row - first) / BLOCK_ROWS]);
                }
            }
        for (int64_t pair = from; pair < upto; pair++)
            for (int64_t row = first; row < end; row += BLOCK_ROWS)
                put_sums(l, row, smaller(BLOCK_ROWS, end - row), pair * PAIR,
                         space.sums[pair - from][(row - first) / BLOCK_ROWS].of);
    }

    // Sums begin with the products of outliers. Those of a task come first: tiles take their shape
    // once for all.
    void begin(int64_t row, int64_t count, int64_t pair, BlockSums& sums) {
        if (!l.weights.outliers) {
            memset((void*)&sums, 0, sizeof sums);
            return;
        }
        tiles.shape(count, OUTLIER_BYTES);
        count > TILE_ROWS ? multiply_outliers<true>(row, pair, sums)
                          : multiply_outliers<false>(row, pair, sums);
    }

    template <bool HAS_LOWER>
    void multiply_outliers(int64_t row, int64_t pair, BlockSums& sums) {
        const bf16* x = l.rows.short_outliers + row * OUTLIERS;
        const int64_t last = l.weights.num_panels() - 1;
        clear_sums();
        settle();
        _tile_loadd(6, l.weights.panel(pair * PAIR) + LINE, LINE);
        _tile_loadd(4, x, OUTLIER_BYTES);
        _tile_loadd(7, l.weights.panel(smaller(pair * PAIR + 1, last)) + LINE, LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (HAS_LOWER) {
            _tile_loadd(5, x + TILE_ROWS * OUTLIERS, OUTLIER_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        store_sums<HAS_LOWER>(&sums, PAIR * LANES);
    }

    void add(const TileWork& work, BlockSums& sums) {
        tiles.shape(work.count);
        l.weights.in_nibbles ? add_groups<true>(work, sums) : add_groups<false>(work, sums);
    }

    template <bool IN_NIBBLES>
    void add_groups(const TileWork& work, BlockSums& sums) {
        for (int64_t g = work.group; g < work.group + work.num_groups; g++)
            work.count > TILE_ROWS ? add_group<true, IN_NIBBLES>(work, g, sums)
                                   : add_group<false, IN_NIBBLES>(work, g, sums);
    }
};

struct TileShare {
    const Linear& linear;
    TileJob plan;
};

inline void do_tasks_by_tiles(void* argument) {
    TileShare& share = *(TileShare*)argument;
    TileSpace space;
    TileWorker worker{share.linear, space, {}};
    int64_t task;
    while ((task = __atomic_fetch_add(&share.plan.next_task, 1, __ATOMIC_RELAXED)) <
           share.plan.num_tasks)
        worker.act(share.plan, task);
}

inline void multiply_by_tiles(const Linear& l, int64_t num_threads) {
    const int64_t num_pairs = ratio_up(l.weights.num_panels(), PAIR);
    const int64_t num_wanted = num_threads > 1 ? TASKS_OF_TILES * num_threads : 1;
    const int64_t num_blocks =
        larger(ratio_up(l.num_rows, MAX_TASK_ROWS),
               smaller(ratio_up(l.num_rows, BLOCK_ROWS), ratio_up(num_wanted, num_pairs)));
    TileJob plan = {};
    plan.task_rows = round_up(ratio_up(l.num_rows, num_blocks), BLOCK_ROWS);
    plan.num_blocks = ratio_up(l.num_rows, plan.task_rows);
    const int64_t num_groups = ratio_up(num_wanted, num_blocks);
    plan.task_pairs = larger(smaller(num_pairs / num_groups, MAX_TASK_PAIRS), 1);
    plan.num_tasks = ratio_up(num_pairs, plan.task_pairs) * plan.num_blocks;
    TileShare share = {l, plan};
    in_parallel(smaller(num_threads, plan.num_tasks), do_tasks_by_tiles, &share);
}

}  // namespace
