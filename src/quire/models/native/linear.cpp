// y[M, N] = x[M, K] W[N, K]^T + bias in bfloat16, summed in floats, over weights packed once.
//
// Packed: panels of 16 rows of W, so that one vector holds the same pair of columns of 16 rows:
//
//     panel[N / 16][K / 2][16 rows][2 columns]        padded with zeros to whole pairs and panels
//
// A tile keeps up to 24 vectors of sums in registers while it runs down the pairs: 4 panels by 6
// rows of x, or 2 panels by 12. Compiled once for each instruction set, QUIRE_ISA naming it; sets
// without the bfloat16 dot product export nothing.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__)

#include <immintrin.h>

#define QUIRE_JOIN_(a, b) a##_##b
#define QUIRE_JOIN(a, b) QUIRE_JOIN_(a, b)
#define QUIRE_EXPORT(type, name) \
    extern "C" __attribute__((visibility("default"))) type QUIRE_JOIN(name, QUIRE_ISA)

// torch's own OpenMP, loaded before this library; without it the caller does everything.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);

namespace {

constexpr int64_t LANES = 16;
constexpr int WIDE = 4, WIDE_ROWS = 6;
constexpr int NARROW = 2, NARROW_ROWS = 12;
constexpr int64_t TASKS_PER_THREAD = 4;

struct Weights {
    const uint32_t* packed;  // pairs
    const uint16_t* bias;    // null: none
    int64_t num_rows;        // N
    int64_t num_columns;     // K

    int64_t num_pairs() const { return (num_columns + 1) / 2; }
    int64_t num_panels() const { return (num_rows + LANES - 1) / LANES; }
    const uint32_t* panel(int64_t i) const { return packed + i * num_pairs() * LANES; }
};

struct Linear {
    Weights weights;
    const uint16_t* x;
    uint16_t* y;
    int64_t num_rows;  // M
    int64_t block_rows;
    int64_t num_blocks;
    int num_vectors;  // panels of a tile
    int64_t num_tasks;
    int64_t next_task;
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t ratio_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline void in_parallel(int64_t num_threads, void (*act)(void*), void* argument) {
    if (num_threads > 1 && GOMP_parallel)
        GOMP_parallel(act, argument, unsigned(num_threads), 0);
    else
        act(argument);
}

inline __m512 bias_of(const Weights& weights, int64_t row) {
    uint32_t bits[LANES] = {};
    if (weights.bias)
        for (int64_t i = 0; i < LANES && row + i < weights.num_rows; i++)
            bits[i] = uint32_t(weights.bias[row + i]) << 16;
    return _mm512_loadu_ps(bits);
}

inline void put(uint16_t* place, __m512 sums, int64_t count) {
    __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sums);
    if (count >= LANES)
        _mm256_storeu_si256((__m256i*)place, rounded);
    else if (count > 0)
        memcpy(place, &rounded, size_t(count) * 2);
}

inline uint32_t pair_at(const uint16_t* x) {
    uint32_t out;
    memcpy(&out, x, 4);
    return out;
}

template <int ROWS, int VECTORS>
__attribute__((always_inline)) inline void add(__m512 (&sums)[ROWS][VECTORS],
                                               const uint32_t* const (&panels)[VECTORS], int64_t at,
                                               const uint32_t (&pairs)[ROWS]) {
    __m512bh w[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
        w[v] = (__m512bh)_mm512_loadu_si512(panels[v] + at * LANES);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        __m512bh pair = (__m512bh)_mm512_set1_epi32(int(pairs[r]));
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], w[v], pair);
    }
}

// ROWS rows of x from `first` by VECTORS panels from `panel`. The last panel stands in for those
// beyond it, whose sums are then dropped.
template <int ROWS, int VECTORS>
__attribute__((noinline)) void tile(const Linear& l, int64_t first, int64_t panel) {
    const Weights& weights = l.weights;
    const int64_t k = weights.num_columns, last = weights.num_panels() - 1;
    const uint16_t* x = l.x + first * k;
    const uint32_t* panels[VECTORS];
    __m512 sums[ROWS][VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        panels[v] = weights.panel(smaller(panel + v, last));
        __m512 bias = bias_of(weights, (panel + v) * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) sums[r][v] = bias;
    }
    uint32_t pairs[ROWS];
    for (int64_t i = 0; i < k / 2; i++) {
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) pairs[r] = pair_at(x + r * k + 2 * i);
        add(sums, panels, i, pairs);
    }
    if (k % 2) {
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) pairs[r] = x[r * k + k - 1];
        add(sums, panels, k / 2, pairs);
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            int64_t row = (panel + v) * LANES;
            put(l.y + (first + r) * weights.num_rows + row, sums[r][v], weights.num_rows - row);
        }
}

typedef void (*Tile)(const Linear&, int64_t, int64_t);

const Tile WIDE_TILES[WIDE_ROWS] = {tile<1, WIDE>, tile<2, WIDE>, tile<3, WIDE>,
                                    tile<4, WIDE>, tile<5, WIDE>, tile<6, WIDE>};
const Tile NARROW_TILES[NARROW_ROWS] = {
    tile<1, NARROW>, tile<2, NARROW>, tile<3, NARROW>,  tile<4, NARROW>,
    tile<5, NARROW>, tile<6, NARROW>, tile<7, NARROW>,  tile<8, NARROW>,
    tile<9, NARROW>, tile<10, NARROW>, tile<11, NARROW>, tile<12, NARROW>};

// One block of rows by one tile's panels; its rows are shared out evenly among the tiles.
void do_task(const Linear& l, int64_t task) {
    bool is_wide = l.num_vectors == WIDE;
    int64_t panel = task / l.num_blocks * l.num_vectors;
    int64_t first = task % l.num_blocks * l.block_rows;
    int64_t num_rows = smaller(l.block_rows, l.num_rows - first);
    int64_t num_tiles = ratio_up(num_rows, is_wide ? WIDE_ROWS : NARROW_ROWS);
    for (int64_t i = 0; i < num_tiles; i++) {
        int64_t from = num_rows * i / num_tiles, upto = num_rows * (i + 1) / num_tiles;
        (is_wide ? WIDE_TILES : NARROW_TILES)[upto - from - 1](l, first + from, panel);
    }
}

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    int64_t task;
    while ((task = __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED)) < l.num_tasks)
        do_task(l, task);
}

// Wide tiles, unless the rows fill just one narrow tile, or there are too few wide ones to share.
void plan(Linear& l, int64_t num_threads) {
    int64_t num_wanted = num_threads > 1 ? TASKS_PER_THREAD * num_threads : 1;
    int64_t num_panels = l.weights.num_panels();
    bool is_narrow = l.num_rows > WIDE_ROWS ? l.num_rows <= NARROW_ROWS
                                            : ratio_up(num_panels, WIDE) < num_wanted;
    l.num_vectors = is_narrow ? NARROW : WIDE;
    int64_t most_rows = is_narrow ? NARROW_ROWS : WIDE_ROWS;
    int64_t num_groups = ratio_up(num_panels, l.num_vectors);
    int64_t num_tiles = ratio_up(l.num_rows, most_rows);
    int64_t num_blocks = smaller(num_tiles, ratio_up(num_wanted, num_groups));
    l.block_rows = ratio_up(num_tiles, num_blocks) * most_rows;
    l.num_blocks = ratio_up(l.num_rows, l.block_rows);
    l.num_tasks = num_groups * l.num_blocks;
    l.next_task = 0;
}

struct Packing {
    const uint16_t* weight;
    uint32_t* packed;
    int64_t num_rows, num_columns;
    int64_t next_panel;
};

void pack_panel(const Packing& p, int64_t panel) {
    const int64_t k = p.num_columns, num_pairs = (k + 1) / 2;
    const uint16_t* rows = p.weight + panel * LANES * k;
    uint32_t* out = p.packed + panel * num_pairs * LANES;
    int64_t count = smaller(LANES, p.num_rows - panel * LANES);
    for (int64_t i = 0; i < num_pairs; i++)
        for (int64_t r = 0; r < LANES; r++) {
            const uint16_t* from = rows + r * k + 2 * i;
            out[i * LANES + r] = r >= count ? 0 : 2 * i + 1 < k ? pair_at(from) : *from;
        }
}

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    int64_t num_panels = ratio_up(p.num_rows, LANES), panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < num_panels)
        pack_panel(p, panel);
}

}  // namespace

// packed: ceil(N / 16) * ceil(K / 2) * 16 pairs.
QUIRE_EXPORT(void, quire_linear_pack)
(const uint16_t* weight, int64_t n, int64_t k, uint32_t* packed, int64_t num_threads) {
    Packing packing = {weight, packed, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

// x [M, K] and y [M, N] are contiguous; bias [N] or null.
QUIRE_EXPORT(void, quire_linear)
(const uint16_t* x, int64_t m, const uint32_t* packed, const uint16_t* bias, int64_t n, int64_t k,
 uint16_t* y, int64_t num_threads) {
    if (m == 0 || n == 0) return;
    Linear linear = {};
    linear.weights = {packed, bias, n, k};
    linear.x = x;
    linear.y = y;
    linear.num_rows = m;
    plan(linear, num_threads);
    in_parallel(smaller(num_threads, linear.num_tasks), do_tasks, &linear);
}

// Rows of W [N, K] by their index, out of the packed form: y [count, K]. False: an index is not of N.
QUIRE_EXPORT(bool, quire_linear_rows)
(const int64_t* indices, int64_t count, const uint32_t* packed, int64_t n, int64_t k, uint16_t* y) {
    const int64_t num_pairs = (k + 1) / 2;
    for (int64_t i = 0; i < count; i++, y += k) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const uint32_t* from = packed + indices[i] / LANES * num_pairs * LANES + indices[i] % LANES;
        for (int64_t j = 0; j < k / 2; j++) memcpy(y + 2 * j, from + j * LANES, 4);
        if (k % 2) y[k - 1] = uint16_t(from[(num_pairs - 1) * LANES]);
    }
    return true;
}

#endif
