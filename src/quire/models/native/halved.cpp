// y[M, N] = x[M, K] W[N, K]^T + bias in floats, where W's numbers are bfloat16 ones and kept as that:
// the high halves of its floats, packed once. Whichever way, sums run column by column.
//
// Where x has few rows, each thread takes panel after panel and widens what it multiplies; MAX_ROWS
// at a time, for which it reads the panel again, from a cache. With more rows a stretch of some
// panels is widened once for a block of them.
//
//     packed   panels of 32 rows of W, the last filled up with zeros
//     panel    column after column: 32 halves
#include "products.h"

namespace {

constexpr int64_t PANEL = 32;       // rows of W
constexpr int64_t MAX_PANELS = 2;   // of a task
constexpr int64_t GROUP = MAX_PANELS * PANEL;
constexpr int64_t FEW_ROWS = LANES >= 8 ? 48 : MAX_ROWS;  // of x
constexpr int64_t STRETCH = 256;    // columns
constexpr int64_t MAX_BLOCK = 126;  // rows of x, in tiles of MAX_ROWS
constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int64_t PACKED_COLUMNS = 64;  // at a time
constexpr int64_t AHEAD = 32;       // columns
constexpr int MAX_SUMS = 12;        // vectors of them that registers hold on any machine

struct Halved {
    const float* x;
    const uint16_t* packed;
    const float* bias;  // null: none
    float* y;
    int64_t num_rows, n, k;  // M, N, K
    int64_t panels_at_once, num_blocks, num_tasks, next_task;

    int64_t num_panels() const { return ratio_up(n, PANEL); }
    const uint16_t* panel(int64_t i) const { return packed + i * k * PANEL; }

    // Sums of one row by `count` rows of W, the first of which is `column` of y.
    void put(int64_t row, int64_t column, const float* sums, int64_t count) const {
        float* place = y + row * n + column;
        for (int64_t i = 0; i < smaller(count, n - column); i++)
            place[i] = bias ? sums[i] + bias[column + i] : sums[i];
    }
};

inline floats widen(const uint16_t* halves) {
    uint32_t bits[LANES];
    for (int i = 0; i < LANES; i++) bits[i] = uint32_t(halves[i]) << 16;
    floats out;
    memcpy(&out, bits, sizeof out);
    return out;
}

constexpr int vectors_at_once(int rows) {
    int out = PANEL / LANES;
    while (out > 1 && out * rows > MAX_SUMS) out /= 2;
    return out;
}

// ROWS rows of x, from `row` on, by one panel.
template <int ROWS>
__attribute__((noinline)) void add_panel(const Halved& h, int64_t row, int64_t panel) {
    constexpr int VECTORS = vectors_at_once(ROWS), PART = VECTORS * LANES;
    for (int64_t first = 0; first < PANEL; first += PART) {
        const uint16_t* from = h.panel(panel) + first;
        const float* x = h.x + row * h.k;
        floats sums[ROWS][VECTORS] = {};
        for (int64_t column = 0; column < h.k; column++, from += PANEL) {
            __builtin_prefetch(from + AHEAD * PANEL);
            floats weights[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) weights[v] = widen(from + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++)
                    sums[r][v] = sums[r][v] + splat(x[r * h.k + column]) * weights[v];
        }
        for (int r = 0; r < ROWS; r++) {
            float own[PART];
            memcpy(own, sums[r], sizeof own);
            h.put(row + r, panel * PANEL + first, own, PART);
        }
    }
}

typedef void (*AddPanel)(const Halved&, int64_t, int64_t);

const AddPanel ADD_PANEL[MAX_ROWS] = {add_panel<1>, add_panel<2>, add_panel<3>,
                                      add_panel<4>, add_panel<5>, add_panel<6>};

// A thread's own.
struct alignas(LINE) Space {
    float weights[STRETCH * GROUP];
    float sums[MAX_BLOCK * GROUP];
};

void widen_stretch(const Halved& h, int64_t panel, int64_t count, int64_t begin, int64_t end,
                   float* weights) {
    for (int64_t i = 0; i < count; i++) {
        const uint16_t* from = h.panel(panel + i) + begin * PANEL;
        for (int64_t column = begin; column < end; column++, from += PANEL)
            for (int64_t j = 0; j < PANEL; j += LANES)
                store(weights + (column - begin) * GROUP + i * PANEL + j, widen(from + j));
    }
}

// Some panels by a block of rows.
void do_task(const Halved& h, int64_t task, Space& space) {
    const int64_t panel = task / h.num_blocks * h.panels_at_once, block = task % h.num_blocks;
    const int64_t count = smaller(h.panels_at_once, h.num_panels() - panel);
    const int64_t first = h.num_rows * block / h.num_blocks;
    const int64_t num_rows = h.num_rows * (block + 1) / h.num_blocks - first;
    const int64_t num_tiles = ratio_up(num_rows, MAX_ROWS);
    for (int64_t begin = 0; begin < h.k; begin += STRETCH) {
        const int64_t end = smaller(begin + STRETCH, h.k);
        widen_stretch(h, panel, count, begin, end, space.weights);
        for (int64_t i = 0; i < num_tiles; i++) {
            const int64_t row = num_rows * i / num_tiles;
            const float* x = h.x + (first + row) * h.k + begin;
            multiply<Fma>({(const uint32_t*)x, h.k, (const uint32_t*)space.weights, GROUP,
                           end - begin, space.sums + row * GROUP, GROUP, begin > 0},
                          num_rows * (i + 1) / num_tiles - row, count * PANEL);
        }
    }
    for (int64_t row = 0; row < num_rows; row++)
        h.put(first + row, panel * PANEL, space.sums + row * GROUP, count * PANEL);
}

void do_panels(void* argument) {
    Halved& h = *(Halved*)argument;
    const int64_t num_tiles = ratio_up(h.num_rows, MAX_ROWS);
    int64_t panel;
    while ((panel = __atomic_fetch_add(&h.next_task, 1, __ATOMIC_RELAXED)) < h.num_tasks)
        for (int64_t i = 0; i < num_tiles; i++) {
            const int64_t row = h.num_rows * i / num_tiles;
            ADD_PANEL[h.num_rows * (i + 1) / num_tiles - row - 1](h, row, panel);
        }
}

void do_tasks(void* argument) {
    Halved& h = *(Halved*)argument;
    Space space;
    int64_t task;
    while ((task = __atomic_fetch_add(&h.next_task, 1, __ATOMIC_RELAXED)) < h.num_tasks)
        do_task(h, task, space);
}

struct Packing {
    const uint32_t* weight;
    uint16_t* packed;
    int64_t n, k, next_panel;
};

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < ratio_up(p.n, PANEL))
        for (int64_t begin = 0; begin < p.k; begin += PACKED_COLUMNS)
            for (int64_t i = 0; i < PANEL; i++) {
                const int64_t row = panel * PANEL + i, end = smaller(begin + PACKED_COLUMNS, p.k);
                uint16_t* place = p.packed + panel * p.k * PANEL + i;
                for (int64_t column = begin; column < end; column++)
                    place[column * PANEL] =
                        row < p.n ? uint16_t(p.weight[row * p.k + column] >> 16) : 0;
            }
}

}  // namespace

// Are all of these bfloat16 numbers?
QUIRE_EXPORT(bool, quire_halved_fits)(const uint32_t* weight, int64_t count) {
    constexpr int64_t STEP = 1024;
    for (int64_t first = 0; first < count; first += STEP) {
        uint32_t bits = 0;
        for (int64_t i = first; i < smaller(first + STEP, count); i++) bits |= weight[i];
        if (bits & 0xffff) return false;
    }
    return true;
}

// weight [N, K]; packed: ceil(N / 32) K 32 halves.
QUIRE_EXPORT(void, quire_halved_pack)
(const uint32_t* weight, int64_t n, int64_t k, uint16_t* packed, int64_t num_threads) {
    Packing packing{weight, packed, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

// x [M, K] and y [M, N] are contiguous; bias [N] or null.
QUIRE_EXPORT(void, quire_halved)
(const float* x, int64_t m, const uint16_t* packed, const float* bias, int64_t n, int64_t k,
 float* y, int64_t num_threads) {
    if (m == 0 || n == 0) return;
    Halved h{x, packed, bias, y, m, n, k, 1, 1, 0, 0};
    const int64_t num_panels = h.num_panels();
    const bool is_small = m <= FEW_ROWS;
    if (!is_small) {
        h.panels_at_once = num_panels / (TASKS_PER_THREAD * num_threads);
        h.panels_at_once = smaller(larger(h.panels_at_once, 1), MAX_PANELS);
        h.num_blocks = ratio_up(m, MAX_BLOCK);
    }
    h.num_tasks = ratio_up(num_panels, h.panels_at_once) * h.num_blocks;
    in_parallel(smaller(num_threads, h.num_tasks), is_small ? do_panels : do_tasks, &h);
}

// Rows of W by their index: y [count, K]. False: one is not of N.
QUIRE_EXPORT(bool, quire_halved_rows)
(const int64_t* indices, int64_t count, const uint16_t* packed, int64_t n, int64_t k, uint32_t* y) {
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const uint16_t* from = packed + indices[i] / PANEL * k * PANEL + indices[i] % PANEL;
        for (int64_t column = 0; column < k; column++)
            y[i * k + column] = uint32_t(from[column * PANEL]) << 16;
    }
    return true;
}
