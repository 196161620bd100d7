// Products of quantised rows of x by weights kept as bytes or nibbles, tile by tile: w8a8.cpp and
// w4a8.cpp say how these are stored.
#pragma once

#include "linear/quantised/nibbles.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr int WIDE = 4, WIDE_ROWS = 6;
constexpr int NARROW = 2, NARROW_ROWS = 12;
constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int64_t QUAD = 4;  // columns in a vector of W
constexpr int64_t GROUP_STEPS = GROUP / QUAD;
constexpr int64_t SHARED_NUMBERS = 1 << 14;  // from so many numbers of x on all threads quantise
constexpr int64_t OUTLIERS = 16;  // columns in bfloat16, if a weight has any
constexpr int64_t OUTLIER_LINES = OUTLIERS / 2;

struct Weights {
    const uint8_t* packed;
    int64_t num_rows;     // N
    int64_t num_columns;  // K
    bool in_nibbles = false;
    // OUTLIERS columns, then a bit for each column that is none of them, up to a multiple of 32.
    const int32_t* outliers = nullptr;
    // The importance of each column's squared error while nibbles are packed; null if none is known.
    const float* importance = nullptr;

    const __mmask16* others() const {
        return outliers ? (const __mmask16*)(outliers + OUTLIERS) : nullptr;
    }
    // The lines before a panel's bytes or nibbles.
    int64_t head_lines() const { return 1 + (outliers ? OUTLIER_LINES : 0); }
    int64_t num_steps() const { return ratio_up(num_columns, QUAD); }
    int64_t num_panels() const { return ratio_up(num_rows, LANES); }
    int64_t panel_bytes() const {
        return (head_lines() + (in_nibbles ? nibble_lines(num_columns) : num_steps())) * LINE;
    }
    const uint8_t* panel(int64_t i) const {
        return packed + smaller(i, num_panels()) * panel_bytes();
    }

    // Returns where the steps of a panel's group are; those of nibbles are written to `space`, with a
    // call of fetch(line) for each line that is read.
    template <bool IN_NIBBLES, class Fetch>
    __attribute__((always_inline)) const uint8_t* steps(const uint8_t* panel, int64_t group,
                                                        uint8_t* space, Fetch&& fetch) const {
        if (!IN_NIBBLES) return panel + (group * GROUP_STEPS + head_lines()) * LINE;
        const int64_t count = smaller(GROUP, num_columns - group * GROUP);
        decode_group(panel + (head_lines() + group * GROUP_LINES) * LINE, count, space,
                     fetch);
        return space;
    }
};

// The decoded steps of a group of one panel.
struct alignas(LINE) Decoded {
    uint8_t steps[GROUP_STEPS * LINE];
};

// The quantised rows of x: their bytes, `stride` apart, a scale and a sum for each group, and the
// numbers of outliers, as floats and as bfloat16.
struct Quantised {
    int8_t* numbers;
    float* scales;
    int32_t* offsets;  // -ZERO * sum, which takes away what the weights' zero adds
    float* outliers;   // [M, OUTLIERS]
    bf16* short_outliers;
    int64_t stride, num_groups;
};

struct Linear {
    Weights weights;
    Quantised rows;
    const void* x;
    const void* bias;  // null: none
    void* y;
    bool is_bf16;  // x, bias and y
    int64_t num_rows;  // M
    int64_t block_rows, num_blocks;
    int num_vectors;  // panels in a tile
    int64_t num_tasks, next_task, next_row;
};

// Rounds the outliers of a row to bfloat16. Returns whether all are finite.
template <class T>
bool take_outliers(const Linear& l, int64_t row) {
    const T* x = (const T*)l.x + row * l.weights.num_columns;
    bf16 taken[OUTLIERS];
    float numbers[OUTLIERS];
    for (int64_t i = 0; i < OUTLIERS; i++) numbers[i] = to_float(x[l.weights.outliers[i]]);
    put(taken, _mm512_loadu_ps(numbers), 0xffff);
    const __m512 rounded = load_some(taken, 0xffff);
    memcpy(l.rows.short_outliers + row * OUTLIERS, taken, sizeof taken);
    _mm512_storeu_ps(l.rows.outliers + row * OUTLIERS, rounded);
    return uint32_t(_mm512_reduce_max_epi32(sizes(rounded))) < 0x7f800000u;
}

template <class T>
void quantise_row(const Linear& l, int64_t row) {
    const Quantised& to = l.rows;
    const int64_t k = l.weights.num_columns;
    const __mmask16* others = l.weights.others();
    for (int64_t g = 0; g < to.num_groups; g++) {
        const int64_t at = g * GROUP;
        quantise_group((const T*)l.x + row * k + at, k - at, others ? others + at / LANES : nullptr,
                       to.numbers + row * to.stride + at, to.scales + row * to.num_groups + g,
                       to.offsets + row * to.num_groups + g);
    }
    if (others && !take_outliers<T>(l, row)) to.scales[row * to.num_groups] = __builtin_nanf("");
}

inline void quantise_rows(void* argument) {
    Linear& l = *(Linear*)argument;
    int64_t row;
    while ((row = __atomic_fetch_add(&l.next_row, 1, __ATOMIC_RELAXED)) < l.num_rows)
        l.is_bf16 ? quantise_row<bf16>(l, row) : quantise_row<float>(l, row);
}

// The lines that the next task will read, which are fetched while this one computes.
struct Ahead {
    const uint8_t *next, *end;

    template <int VECTORS>
    __attribute__((always_inline)) void fetch() {
        if (next >= end) return;
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) __builtin_prefetch(next + v * LINE, 0, 2);
        next += VECTORS * LINE;
    }
};

// The sums of a tile lie in memory: registers hold the counts of one group.
template <int ROWS, int VECTORS>
struct Sums {
    __m512 of[ROWS][VECTORS];
};

// The products of outliers, which begin the sums: those of even and of odd places, each from the
// first to the last, and then both. Tiles sum alike.
template <int ROWS, int VECTORS>
__attribute__((noinline)) void begin_by_outliers(const Linear& l, int64_t row,
                                                 const uint8_t* const (&panels)[VECTORS],
                                                 Ahead& ahead, Sums<ROWS, VECTORS>& sums) {
    const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000));
    const float* x = l.rows.outliers + row * OUTLIERS;
    for (int v = 0; v < VECTORS; v++) {
        __m512 even[ROWS] = {}, odd[ROWS] = {};
        for (int64_t i = 0; i < OUTLIER_LINES; i++) {
            ahead.fetch<1>();
            const __m512i both = _mm512_loadu_si512(panels[v] + (1 + i) * LINE);
            const __m512 left = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
            const __m512 right = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                const float* two = x + r * OUTLIERS + 2 * i;
                even[r] = _mm512_fmadd_ps(_mm512_set1_ps(two[0]), left, even[r]);
                odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(two[1]), right, odd[r]);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) sums.of[r][v] = _mm512_add_ps(even[r], odd[r]);
    }
}

// All that a tile reads for one group of columns.
template <int VECTORS>
struct Group {
    const uint8_t* panels[VECTORS];
    const int8_t* x;
    int64_t x_stride, num_steps;
    const float* scales;
    const int32_t* offsets;
    int64_t stride;
};

template <bool IN_NIBBLES, int ROWS, int VECTORS>
__attribute__((noinline)) void add_group(const Group<VECTORS>& g, Ahead& given,
                                         Sums<ROWS, VECTORS>& sums) {
    Ahead ahead = given;
    ints counts[ROWS][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) counts[r][v] = ints{} + g.offsets[r * g.stride];
    const uint8_t* panels[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) panels[v] = g.panels[v];
    const int8_t* x = g.x;
    for (int64_t i = 0; i < g.num_steps; i++, x += QUAD) {
        // Nibbles were half of this memory, and most of the next is fetched while they are decoded.
        if (!IN_NIBBLES)
            ahead.fetch<VECTORS>();
        else if (i % 2)
            ahead.fetch<VECTORS / 2>();
        __m512i w[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) w[v] = _mm512_loadu_si512(panels[v] + i * LINE);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, x + r * g.x_stride, QUAD);
            __m512i numbers = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                counts[r][v] = (ints)_mm512_dpbusd_epi32((__m512i)counts[r][v], w[v], numbers);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        __m512 scale = _mm512_set1_ps(g.scales[r * g.stride]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            sums.of[r][v] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)counts[r][v]), scale, sums.of[r][v]);
    }
    given = ahead;
}

template <class T, int VECTORS>
void put_sums_as(const Linear& l, int64_t row, int64_t count, int64_t panel,
                 const __m512 (*sums)[VECTORS]) {
    const int64_t n = l.weights.num_rows;
    for (int v = 0; v < VECTORS && (panel + v) * LANES < n; v++) {
        const int64_t at = (panel + v) * LANES;
        const __mmask16 mask = first(n - at);
        const __m512 scale = _mm512_loadu_ps((const float*)l.weights.panel(panel + v));
        const __m512 bias = l.bias ? load_some((const T*)l.bias + at, mask) : _mm512_setzero_ps();
        for (int64_t r = 0; r < count; r++)
            put((T*)l.y + (row + r) * n + at, _mm512_fmadd_ps(sums[r][v], scale, bias), mask);
    }
}

// Writes `count` rows of y from `row` on, by the sums of VECTORS panels from `panel` on; those beyond
// the last are dropped.
template <int VECTORS>
void put_sums(const Linear& l, int64_t row, int64_t count, int64_t panel,
              const __m512 (*sums)[VECTORS]) {
    l.is_bf16 ? put_sums_as<bf16>(l, row, count, panel, sums)
              : put_sums_as<float>(l, row, count, panel, sums);
}

// Multiplies ROWS rows of x from `row` on by VECTORS panels from `panel` on. The last panel stands in
// for those beyond it.
template <bool IN_NIBBLES, int ROWS, int VECTORS>
void tile(const Linear& l, int64_t row, int64_t panel, Ahead ahead) {
    const Quantised& rows = l.rows;
    const int64_t num_steps = l.weights.num_steps(), stride = rows.num_groups;
    const int64_t last = l.weights.num_panels() - 1;
    const uint8_t* panels[VECTORS];
    for (int v = 0; v < VECTORS; v++) panels[v] = l.weights.panel(smaller(panel + v, last));
    Sums<ROWS, VECTORS> sums = {};
    if (l.weights.outliers) begin_by_outliers<ROWS, VECTORS>(l, row, panels, ahead, sums);
    Decoded decoded[IN_NIBBLES ? VECTORS : 1];
    for (int64_t g = 0; g < rows.num_groups; g++) {
        const int64_t step = g * GROUP_STEPS;
        Group<VECTORS> group = {{},
                                rows.numbers + row * rows.stride + g * GROUP,
                                rows.stride,
                                smaller(GROUP_STEPS, num_steps - step),
                                rows.scales + row * stride + g,
                                rows.offsets + row * stride + g,
                                stride};
        for (int v = 0; v < VECTORS; v++)
            group.panels[v] =
                l.weights.steps<IN_NIBBLES>(panels[v], g, decoded[IN_NIBBLES ? v : 0].steps,
                                            [&](const uint8_t* line) {
                                                if (uintptr_t(line) / LINE % 4) ahead.fetch<1>();
                                            });
        add_group<IN_NIBBLES>(group, ahead, sums);
    }
    put_sums(l, row, ROWS, panel, sums.of);
}

using Tile = void (*)(const Linear&, int64_t, int64_t, Ahead);

template <bool IN_NIBBLES, int VECTORS, size_t... I>
Tile tile_of(int64_t rows, std::index_sequence<I...>) {
    static const Tile TILES[] = {tile<IN_NIBBLES, int(I) + 1, VECTORS>...};
    return TILES[rows - 1];
}

template <bool IN_NIBBLES>
Tile tile_for(bool is_wide, int64_t rows) {
    return is_wide ? tile_of<IN_NIBBLES, WIDE>(rows, std::make_index_sequence<WIDE_ROWS>())
                   : tile_of<IN_NIBBLES, NARROW>(rows, std::make_index_sequence<NARROW_ROWS>());
}

inline int64_t first_panel(const Linear& l, int64_t task) { return task / l.num_blocks * l.num_vectors; }

// Multiplies one block of rows by one tile's panels. Its rows, and what is to be fetched for the
// task `next`, are shared out evenly among the tiles.
inline void do_task(const Linear& l, int64_t task, int64_t next) {
    bool is_wide = l.num_vectors == WIDE;
    int64_t panel = first_panel(l, task), next_panel = first_panel(l, next);
    int64_t row = task % l.num_blocks * l.block_rows;
    int64_t num_rows = smaller(l.block_rows, l.num_rows - row);
    int64_t num_tiles = ratio_up(num_rows, is_wide ? WIDE_ROWS : NARROW_ROWS);
    const uint8_t* fetched = l.weights.panel(next_panel);
    int64_t num_lines = next_panel == panel
                            ? 0
                            : (l.weights.panel(next_panel + l.num_vectors) - fetched) / LINE;
    for (int64_t i = 0; i < num_tiles; i++) {
        int64_t from = num_rows * i / num_tiles, upto = num_rows * (i + 1) / num_tiles;
        Ahead ahead = {fetched + num_lines * i / num_tiles * LINE,
                       fetched + num_lines * (i + 1) / num_tiles * LINE};
        Tile tile = l.weights.in_nibbles ? tile_for<true>(is_wide, upto - from)
                                         : tile_for<false>(is_wide, upto - from);
        tile(l, row + from, panel, ahead);
    }
}

inline int64_t take_task(Linear& l) { return __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED); }

// Does tasks until none is left.
inline void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    int64_t next, task = take_task(l);
    for (; task < l.num_tasks; task = next) {
        next = take_task(l);
        do_task(l, task, next);
    }
}

// Plans wide tiles, unless the rows fill just one narrow tile, or too few wide ones are there to
// share.
inline void plan(Linear& l, int64_t num_threads) {
    int64_t num_wanted = num_threads > 1 ? TASKS_PER_THREAD * num_threads : 1;
    int64_t num_panels = l.weights.num_panels();
    bool is_narrow = l.num_rows > WIDE_ROWS ? l.num_rows <= NARROW_ROWS
                                            : ratio_up(num_panels, WIDE) < num_wanted;
    l.num_vectors = is_narrow ? NARROW : WIDE;
    int64_t most_rows = is_narrow ? NARROW_ROWS : WIDE_ROWS;
    int64_t num_across = ratio_up(num_panels, l.num_vectors);
    int64_t num_tiles = ratio_up(l.num_rows, most_rows);
    int64_t num_blocks = smaller(num_tiles, ratio_up(num_wanted, num_across));
    l.block_rows = ratio_up(num_tiles, num_blocks) * most_rows;
    l.num_blocks = ratio_up(l.num_rows, l.block_rows);
    l.num_tasks = num_across * l.num_blocks;
}

}  // namespace

#endif
