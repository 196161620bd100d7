// y[M, N] = x[M, K] W[N, K]^T + bias over weights kept as bytes; x and y are floats or bfloat16.
//
//     w ~ scale[row of W] * (byte - 128)            x ~ scale[row of x, group of columns] * int8
//
// Rows of x are quantised within the call, by their largest number in each group of columns, so
// that an outlier coarsens only its neighbours. Products are summed exactly in integers, group by
// group, and groups in floats, from the first to the last: a row's result is the same in any tile.
//
// Packed: panels of 16 rows of W, so that one vector holds the same 4 columns of 16 rows:
//
//     panel[N / 16] { float scale[16]; uint8_t steps[K / 4][16 rows][4 columns]; }   zeros beyond
//
// Sets without byte dot products (VNNI) export nothing.
#include "quantise.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr int WIDE = 4, WIDE_ROWS = 6;
constexpr int NARROW = 2, NARROW_ROWS = 12;
constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int64_t STEP = 4;  // columns in a vector of W
constexpr int64_t LINE = 64;
constexpr int64_t GROUP_STEPS = GROUP / STEP;
constexpr int64_t SHARED_NUMBERS = 1 << 14;  // from so many on, all threads quantise x

inline int64_t ratio_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Weights {
    const uint8_t* packed;
    int64_t num_rows;     // N
    int64_t num_columns;  // K

    int64_t num_steps() const { return ratio_up(num_columns, STEP); }
    int64_t num_panels() const { return ratio_up(num_rows, LANES); }
    int64_t panel_bytes() const { return (num_steps() + 1) * LINE; }
    const uint8_t* panel(int64_t i) const {
        return packed + smaller(i, num_panels()) * panel_bytes();
    }
};

// Rows of x: their bytes, `stride` to a row, and a scale and a sum for each group.
struct Quantised {
    int8_t* numbers;
    float* scales;
    int32_t* offsets;  // -ZERO * sum: what the weights' zero has added
    int64_t stride, num_groups;
};

// `x`, `bias` and `y` are of one type.
struct Linear {
    Weights weights;
    Quantised rows;
    const void* x;
    const void* bias;  // null: none
    void* y;
    bool is_bf16;
    int64_t num_rows;  // M
    int64_t block_rows, num_blocks;
    int num_vectors;  // panels of a tile
    int64_t num_tasks, next_task, next_row;
};

template <class T>
void quantise_row(const Linear& l, int64_t row) {
    const Quantised& to = l.rows;
    const int64_t k = l.weights.num_columns;
    for (int64_t g = 0; g < to.num_groups; g++) {
        int64_t at = g * GROUP;
        quantise_group((const T*)l.x + row * k + at, k - at, to.numbers + row * to.stride + at,
                       to.scales + row * to.num_groups + g, to.offsets + row * to.num_groups + g);
    }
}

void quantise_rows(void* argument) {
    Linear& l = *(Linear*)argument;
    int64_t row;
    while ((row = __atomic_fetch_add(&l.next_row, 1, __ATOMIC_RELAXED)) < l.num_rows)
        l.is_bf16 ? quantise_row<bf16>(l, row) : quantise_row<float>(l, row);
}

// What the next task will read, fetched while this one computes.
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

// Sums of tiles lie in memory: registers hold the counts of one group.
template <int ROWS, int VECTORS>
struct Sums {
    __m512 of[ROWS][VECTORS];
};

// What a tile reads for one group of columns.
template <int VECTORS>
struct Group {
    const uint8_t* panels[VECTORS];
    const int8_t* x;
    int64_t x_stride, num_steps;
    const float* scales;
    const int32_t* offsets;
    int64_t stride;
};

template <int ROWS, int VECTORS>
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
    for (int64_t i = 0; i < g.num_steps; i++, x += STEP) {
        ahead.fetch<VECTORS>();
        __m512i w[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) w[v] = _mm512_loadu_si512(panels[v] + i * LINE);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, x + r * g.x_stride, STEP);
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

template <class T, int ROWS, int VECTORS>
__attribute__((always_inline)) inline void put_tile(const Linear& l, int64_t row, int64_t panel,
                                                    const Sums<ROWS, VECTORS>& sums) {
    const int64_t n = l.weights.num_rows;
    for (int v = 0; v < VECTORS && (panel + v) * LANES < n; v++) {
        const int64_t at = (panel + v) * LANES;
        const __mmask16 mask = first(n - at);
        const __m512 scale = _mm512_loadu_ps((const float*)l.weights.panel(panel + v));
        const __m512 bias =
            l.bias ? load_some((const T*)l.bias + at, mask) : _mm512_setzero_ps();
        for (int r = 0; r < ROWS; r++)
            put((T*)l.y + (row + r) * n + at, _mm512_fmadd_ps(sums.of[r][v], scale, bias), mask);
    }
}

// ROWS rows of x from `row` by VECTORS panels from `panel`, The last panel stands in for those
// beyond it, whose sums are then dropped.
template <int ROWS, int VECTORS>
void tile(const Linear& l, int64_t row, int64_t panel, Ahead ahead) {
    const Quantised& rows = l.rows;
    const int64_t num_steps = l.weights.num_steps(), stride = rows.num_groups;
    const int64_t last = l.weights.num_panels() - 1;
    Sums<ROWS, VECTORS> sums = {};
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
            group.panels[v] = l.weights.panel(smaller(panel + v, last)) + (step + 1) * LINE;
        add_group(group, ahead, sums);
    }
    l.is_bf16 ? put_tile<bf16>(l, row, panel, sums) : put_tile<float>(l, row, panel, sums);
}

typedef void (*Tile)(const Linear&, int64_t, int64_t, Ahead);

const Tile WIDE_TILES[WIDE_ROWS] = {tile<1, WIDE>, tile<2, WIDE>, tile<3, WIDE>,
                                    tile<4, WIDE>, tile<5, WIDE>, tile<6, WIDE>};
const Tile NARROW_TILES[NARROW_ROWS] = {
    tile<1, NARROW>, tile<2, NARROW>, tile<3, NARROW>,  tile<4, NARROW>,
    tile<5, NARROW>, tile<6, NARROW>, tile<7, NARROW>,  tile<8, NARROW>,
    tile<9, NARROW>, tile<10, NARROW>, tile<11, NARROW>, tile<12, NARROW>};

int64_t first_panel(const Linear& l, int64_t task) { return task / l.num_blocks * l.num_vectors; }

// One block of rows by one tile's panels; its rows, and what is to be fetched for the task `next`,
// are shared out evenly among the tiles.
void do_task(const Linear& l, int64_t task, int64_t next) {
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
        (is_wide ? WIDE_TILES : NARROW_TILES)[upto - from - 1](l, row + from, panel, ahead);
    }
}

int64_t take_task(Linear& l) { return __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED); }

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    int64_t next, task = take_task(l);
    for (; task < l.num_tasks; task = next) {
        next = take_task(l);
        do_task(l, task, next);
    }
}

// Wide tiles, unless the rows fill just one narrow tile, or there are too few wide ones to share.
void plan(Linear& l, int64_t num_threads) {
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

Quantised within(char* scratch, int64_t m, int64_t k) {
    Quantised rows;
    rows.stride = round_up(k, LINE);
    rows.num_groups = ratio_up(k, GROUP);
    rows.numbers = (int8_t*)scratch;
    rows.scales = (float*)(scratch + m * rows.stride);
    rows.offsets = (int32_t*)(rows.scales + m * rows.num_groups);
    return rows;
}

struct Packing {
    const void* weight;
    uint8_t* packed;
    bool is_bf16;
    int64_t num_rows, num_columns;
    int64_t next_panel;
};

// `out`: the panel's steps, at the row's place in each.
template <class T>
float pack_row(const T* row, int64_t k, uint8_t* out) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < k; i += LANES)
        largest = _mm512_max_epi32(largest, sizes(load_some(row + i, first(k - i))));
    Scale by = scale_for(largest);
    for (int64_t i = 0; i < k; i += LANES) {
        __m512i q = quantised(load_some(row + i, first(k - i)), by);
        uint8_t bytes[LANES];
        _mm_storeu_si128((__m128i*)bytes,
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(ZERO))));
        for (int64_t j = 0; j < LANES && i + j < k; j += STEP)
            memcpy(out + (i + j) / STEP * LINE, bytes + j, STEP);
    }
    return by.scale;
}

template <class T>
void pack_panel(const Packing& p, int64_t panel) {
    const int64_t num_bytes = (ratio_up(p.num_columns, STEP) + 1) * LINE;
    uint8_t* out = p.packed + panel * num_bytes;
    memset(out, 0, LINE);
    memset(out + LINE, ZERO, size_t(num_bytes - LINE));
    for (int64_t r = 0; r < LANES && panel * LANES + r < p.num_rows; r++) {
        const T* row = (const T*)p.weight + (panel * LANES + r) * p.num_columns;
        float scale = pack_row(row, p.num_columns, out + LINE + r * STEP);
        memcpy(out + r * sizeof scale, &scale, sizeof scale);
    }
}

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    int64_t num_panels = ratio_up(p.num_rows, LANES), panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < num_panels)
        p.is_bf16 ? pack_panel<bf16>(p, panel) : pack_panel<float>(p, panel);
}

template <class T>
void unpack_row(const Weights& weights, int64_t row, T* y) {
    const uint8_t* panel = weights.panel(row / LANES);
    const int64_t r = row % LANES;
    float scale;
    memcpy(&scale, panel + r * sizeof scale, sizeof scale);
    for (int64_t i = 0; i < weights.num_columns; i++) {
        int32_t byte = panel[(i / STEP + 1) * LINE + r * STEP + i % STEP];
        store_as(y + i, float(byte - ZERO) * scale);
    }
}

}  // namespace

// packed: ceil(N / 16) * (ceil(K / 4) + 1) * 64 bytes.
QUIRE_EXPORT(void, quire_int8_pack)
(const void* weight, bool is_bf16, int64_t n, int64_t k, uint8_t* packed, int64_t num_threads) {
    Packing packing = {weight, packed, is_bf16, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

// What `scratch` must hold for one row of x.
QUIRE_EXPORT(int64_t, quire_int8_scratch)(int64_t k) {
    return round_up(k, LINE) + ratio_up(k, GROUP) * int64_t(sizeof(float) + sizeof(int32_t));
}

// x [M, K] and y [M, N] are contiguous; bias [N] or null.
QUIRE_EXPORT(void, quire_int8)
(const void* x, bool is_bf16, int64_t m, const uint8_t* packed, const void* bias, int64_t n,
 int64_t k, void* y, char* scratch, int64_t num_threads) {
    if (m == 0 || n == 0) return;
    Linear linear = {};
    linear.weights = {packed, n, k};
    linear.rows = within(scratch, m, k);
    linear.x = x;
    linear.bias = bias;
    linear.y = y;
    linear.is_bf16 = is_bf16;
    linear.num_rows = m;
    plan(linear, num_threads);
    in_parallel(m * k < SHARED_NUMBERS ? 1 : smaller(num_threads, m), quantise_rows, &linear);
    in_parallel(smaller(num_threads, linear.num_tasks), do_tasks, &linear);
}

// Rows of W [N, K] by their index, as near as bytes are: y [count, K]. False: an index is not of N.
QUIRE_EXPORT(bool, quire_int8_rows)
(const int64_t* indices, int64_t count, const uint8_t* packed, bool is_bf16, int64_t n, int64_t k,
 void* y) {
    Weights weights = {packed, n, k};
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        is_bf16 ? unpack_row(weights, indices[i], (bf16*)y + i * k)
                : unpack_row(weights, indices[i], (float*)y + i * k);
    }
    return true;
}

#endif
