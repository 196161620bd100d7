// y[M, N] = x[M, K] W[N, K]^T + bias in bfloat16, summed in floats, over weights packed once.
//
// Packed: panels of 32 rows of W, so that a vector holds the same pair of columns of 16 rows:
//
//     panel[N / 32][K / 2][32 rows][2 columns]        padded with zeros to whole pairs and panels
//
// A tile keeps the 4 vectors of a group of two panels for each of up to 6 rows of x in registers while it runs
// down the pairs. Tiles that share a group take it stretch by stretch, and while they compute with
// one they fetch the next into the cache, evenly spread, so that memory and arithmetic overlap.
//
// Where all rows of x fit one tile, memory is all that matters, and the hardware's read-ahead is
// best left to itself: each thread reads panel after panel of a range of its own, one stream, and
// helps with another's only at the end. Compiled once for each instruction set, QUIRE_ISA naming it;
// sets without the bfloat16 dot product export nothing.

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
constexpr int VECTORS = 4;
constexpr int64_t PANEL = 32;               // rows of W whose pairs lie together
constexpr int64_t GROUP = VECTORS * LANES;  // rows of W of a tile
constexpr int MAX_ROWS = 6;                 // of x in a tile
constexpr int64_t MAX_SUMS = MAX_ROWS * GROUP;
constexpr int64_t STRETCH_PAIRS = 256;
constexpr int64_t MAX_STRETCH_TILES = 8;  // with more of them the first one's wait is little
constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int PANEL_VECTORS = PANEL / LANES;
constexpr int64_t MAX_RANGES = 64;

struct Weights {
    const uint32_t* packed;  // pairs
    const uint16_t* bias;    // null: none
    int64_t num_rows;        // N
    int64_t num_columns;     // K

    int64_t num_pairs() const { return (num_columns + 1) / 2; }
    int64_t num_panels() const { return (num_rows + PANEL - 1) / PANEL; }
    const uint32_t* panel(int64_t i) const { return packed + i * num_pairs() * PANEL; }
    int64_t num_groups() const { return (num_rows + GROUP - 1) / GROUP; }
    const uint32_t* group(int64_t i) const { return packed + i * num_pairs() * GROUP; }
    // Of a group's vector. The last panel stands in for one beyond it, whose sums are dropped.
    int64_t place(int64_t group, int v) const {
        bool is_there = group * GROUP + v * LANES / PANEL * PANEL < num_rows;
        return (is_there ? v * LANES / PANEL * num_pairs() * PANEL : 0) + v * LANES % PANEL;
    }
};

struct Linear {
    Weights weights;
    const uint16_t* x;
    uint16_t* y;
    int64_t num_rows;  // M
    int64_t block_rows;
    int64_t num_blocks;
    int64_t num_stretches;
    int64_t num_tasks;
    int64_t next_task;
};

// Some rows of x by a stretch of a group, the pairs from `begin` to before `end`. Between stretches
// the sums wait in memory. From `ahead` on, unless it is null, this tile fetches its share of what
// comes next, 1 / num_tiles.
struct Tile {
    int64_t row, group, begin, end;
    float* sums;
    const char* ahead;
    int64_t num_tiles;
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

template <int ROWS>
__attribute__((always_inline)) inline void begin(const Weights& weights, const Tile& t,
                                                 __m512 (&sums)[ROWS][VECTORS]) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        __m512 bias = bias_of(weights, t.group * GROUP + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++)
            sums[r][v] = t.begin ? _mm512_load_ps(t.sums + r * GROUP + v * LANES) : bias;
    }
}

template <int ROWS>
__attribute__((always_inline)) inline void end(const Linear& l, const Tile& t,
                                               const __m512 (&sums)[ROWS][VECTORS]) {
    const int64_t n = l.weights.num_rows;
    bool is_last = t.end == l.weights.num_pairs();
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            int64_t row = t.group * GROUP + v * LANES;
            if (is_last)
                put(l.y + (t.row + r) * n + row, sums[r][v], n - row);
            else
                _mm512_store_ps(t.sums + r * GROUP + v * LANES, sums[r][v]);
        }
}

// Where the vectors of a group's pair lie.
struct Places {
    int64_t of[VECTORS];

    Places(const Weights& weights, int64_t group) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) of[v] = weights.place(group, v);
    }

    // The same lines several times over, where several tiles share the work: that costs nothing.
    void fetch(const char* pair) const {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            __builtin_prefetch(pair + of[v] * int64_t(sizeof(uint32_t)), 0, 2);
    }
};

template <int ROWS>
__attribute__((always_inline)) inline void add(__m512 (&sums)[ROWS][VECTORS], const uint32_t* w,
                                               const Places& places,
                                               const uint32_t (&pairs)[ROWS]) {
    __m512bh vectors[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++)
        vectors[v] = (__m512bh)_mm512_loadu_si512(w + places.of[v]);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        __m512bh pair = (__m512bh)_mm512_set1_epi32(int(pairs[r]));
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = _mm512_dpbf16_ps(sums[r][v], vectors[v], pair);
    }
}

template <int ROWS>
__attribute__((noinline)) void add_tile(const Linear& l, const Tile& t) {
    const int64_t k = l.weights.num_columns, whole = smaller(t.end, k / 2);
    const int64_t step = PANEL * int64_t(sizeof(uint32_t)) / t.num_tiles;
    const uint16_t* x = l.x + t.row * k;
    const uint32_t* w = l.weights.group(t.group) + t.begin * PANEL;
    const char* ahead = t.ahead;
    const Places places(l.weights, t.group);
    __m512 sums[ROWS][VECTORS];
    begin(l.weights, t, sums);
    uint32_t pairs[ROWS];
    for (int64_t i = t.begin; i < whole; i++, w += PANEL) {
        if (ahead) {
            places.fetch(ahead);
            ahead += step;
        }
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) pairs[r] = pair_at(x + r * k + 2 * i);
        add(sums, w, places, pairs);
    }
    if (whole < t.end) {
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) pairs[r] = x[r * k + k - 1];
        add(sums, w, places, pairs);
    }
    end(l, t, sums);
}

typedef void (*AddTile)(const Linear&, const Tile&);

const AddTile ADD_TILE[MAX_ROWS] = {add_tile<1>, add_tile<2>, add_tile<3>,
                                    add_tile<4>, add_tile<5>, add_tile<6>};

// A stretch of a group by all rows of a block, shared out evenly among the tiles.
struct Stretch {
    int64_t group, begin, end;
    int64_t first, num_rows;  // of x
    const uint32_t* ahead;
};

void add_stretch(const Linear& l, const Stretch& s, float* sums) {
    const int64_t num_tiles = ratio_up(s.num_rows, MAX_ROWS);
    const bool is_shared = num_tiles > 1 && num_tiles <= MAX_STRETCH_TILES;
    for (int64_t i = 0; i < num_tiles; i++) {
        const int64_t from = s.num_rows * i / num_tiles, upto = s.num_rows * (i + 1) / num_tiles;
        Tile tile{s.first + from, s.group, s.begin, s.end, sums, nullptr, num_tiles};
        if (is_shared) {
            tile.sums = sums + i * MAX_SUMS;
            tile.ahead = (const char*)(s.ahead + (s.end - s.begin) * i / num_tiles * PANEL);
        }
        ADD_TILE[upto - from - 1](l, tile);
    }
}

// One block of rows by one group; `next` is the task after it.
void do_task(const Linear& l, int64_t task, int64_t next) {
    alignas(64) float sums[MAX_STRETCH_TILES * MAX_SUMS];
    const int64_t num_pairs = l.weights.num_pairs(), first = task % l.num_blocks * l.block_rows;
    Stretch s{task / l.num_blocks, 0, 0, first, smaller(l.block_rows, l.num_rows - first), nullptr};
    for (int64_t i = 1; i <= l.num_stretches; i++) {
        s.begin = s.end;
        s.end = num_pairs * i / l.num_stretches;
        s.ahead = i < l.num_stretches ? l.weights.group(s.group) + s.end * PANEL
                                      : l.weights.group(next / l.num_blocks);
        add_stretch(l, s, sums);
    }
}

int64_t claim(Linear& l) { return __atomic_fetch_add(&l.next_task, 1, __ATOMIC_RELAXED); }

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    for (int64_t task = claim(l), next; task < l.num_tasks; task = next) {
        next = claim(l);
        do_task(l, task, smaller(next, l.num_tasks - 1));
    }
}

// All rows of x, at most one tile, by one panel.
template <int ROWS>
__attribute__((noinline)) void add_panel(const Linear& l, int64_t panel) {
    const int64_t k = l.weights.num_columns, n = l.weights.num_rows;
    const uint32_t* w = l.weights.panel(panel);
    __m512 sums[ROWS][PANEL_VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < PANEL_VECTORS; v++) {
        __m512 bias = bias_of(l.weights, panel * PANEL + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) sums[r][v] = bias;
    }
    for (int64_t i = 0; i < l.weights.num_pairs(); i++, w += PANEL) {
        const bool is_whole = 2 * i + 1 < k;
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const uint16_t* x = l.x + r * k + 2 * i;
            __m512bh pair = (__m512bh)_mm512_set1_epi32(int(is_whole ? pair_at(x) : *x));
#pragma GCC unroll 2
            for (int v = 0; v < PANEL_VECTORS; v++)
                sums[r][v] = _mm512_dpbf16_ps(
                    sums[r][v], (__m512bh)_mm512_loadu_si512(w + v * LANES), pair);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL_VECTORS; v++) {
            int64_t row = panel * PANEL + v * LANES;
            put(l.y + r * n + row, sums[r][v], n - row);
        }
}

typedef void (*AddPanel)(const Linear&, int64_t);

const AddPanel ADD_PANEL[MAX_ROWS] = {add_panel<1>, add_panel<2>, add_panel<3>,
                                      add_panel<4>, add_panel<5>, add_panel<6>};

struct alignas(64) Counter {
    int64_t next;
};

// A range of panels for each thread.
struct Ranges {
    const Linear& linear;
    int64_t count, num_workers;
    Counter taken[MAX_RANGES];

    void work() {
        const int64_t worker = __atomic_fetch_add(&num_workers, 1, __ATOMIC_RELAXED);
        const int64_t num_panels = linear.weights.num_panels();
        for (int64_t turn = 0; turn < count; turn++) {
            const int64_t range = (worker + turn) % count;
            const int64_t first = num_panels * range / count;
            const int64_t size = num_panels * (range + 1) / count - first;
            int64_t at;
            while ((at = __atomic_fetch_add(&taken[range].next, 1, __ATOMIC_RELAXED)) < size)
                ADD_PANEL[linear.num_rows - 1](linear, first + at);
        }
    }
};

void work_on_ranges(void* argument) { ((Ranges*)argument)->work(); }

void multiply_by_panels(const Linear& l, int64_t num_threads) {
    const int64_t most = smaller(num_threads, MAX_RANGES);
    Ranges ranges{l, smaller(most, l.weights.num_panels()), 0, {}};
    in_parallel(ranges.count, work_on_ranges, &ranges);
}

// Rows are cut into blocks only where there are too few groups to share, and stretches serve
// several tiles.
void plan(Linear& l, int64_t num_threads) {
    int64_t num_wanted = num_threads > 1 ? TASKS_PER_THREAD * num_threads : 1;
    int64_t num_groups = l.weights.num_groups(), num_tiles = ratio_up(l.num_rows, MAX_ROWS);
    int64_t num_blocks = smaller(num_tiles, ratio_up(num_wanted, num_groups));
    l.block_rows = ratio_up(num_tiles, num_blocks) * MAX_ROWS;
    l.num_blocks = ratio_up(l.num_rows, l.block_rows);
    bool is_shared = l.num_rows > MAX_ROWS && l.block_rows <= MAX_STRETCH_TILES * MAX_ROWS;
    l.num_stretches = is_shared ? ratio_up(l.weights.num_pairs(), STRETCH_PAIRS) : 1;
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
    const uint16_t* rows = p.weight + panel * PANEL * k;
    uint32_t* out = p.packed + panel * num_pairs * PANEL;
    int64_t count = smaller(PANEL, p.num_rows - panel * PANEL);
    for (int64_t i = 0; i < num_pairs; i++)
        for (int64_t r = 0; r < PANEL; r++) {
            const uint16_t* from = rows + r * k + 2 * i;
            out[i * PANEL + r] = r >= count ? 0 : 2 * i + 1 < k ? pair_at(from) : *from;
        }
}

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    int64_t num_panels = ratio_up(p.num_rows, PANEL), panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < num_panels)
        pack_panel(p, panel);
}

}  // namespace

// packed: ceil(N / 32) * 32 * ceil(K / 2) pairs.
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
    if (m <= MAX_ROWS) return multiply_by_panels(linear, num_threads);
    plan(linear, num_threads);
    in_parallel(smaller(num_threads, linear.num_tasks), do_tasks, &linear);
}

// Rows of W [N, K] by their index, out of the packed form: y [count, K]. False: an index is not of N.
QUIRE_EXPORT(bool, quire_linear_rows)
(const int64_t* indices, int64_t count, const uint32_t* packed, int64_t n, int64_t k, uint16_t* y) {
    const int64_t num_pairs = (k + 1) / 2;
    for (int64_t i = 0; i < count; i++, y += k) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const uint32_t* from = packed + indices[i] / PANEL * num_pairs * PANEL + indices[i] % PANEL;
        for (int64_t j = 0; j < k / 2; j++) memcpy(y + 2 * j, from + j * PANEL, 4);
        if (k % 2) y[k - 1] = uint16_t(from[(num_pairs - 1) * PANEL]);
    }
    return true;
}

#endif
