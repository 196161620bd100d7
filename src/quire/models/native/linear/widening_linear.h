// y[M, N] = x[M, K] W[N, K]^T + bias in floats, where W's numbers are stored in fewer bytes than
// floats have, packed once, and widened to floats as they are multiplied. Sums always run column by
// column.
//
// Where x has few rows, each thread takes panel after panel and widens what it multiplies;
// Fma::MAX_ROWS rows at a time, for which it reads the panel again, from a cache. With more rows a
// stretch of some panels is widened once for a block of them.
//
// A weight is packed in panels of 32 rows, the last filled up with zeros. Its type has
//
//     columns<VECTORS>(panel, first, begin, end, act)
//
// which calls act(column, floats[VECTORS]) for each of these columns with the numbers of a panel's rows
// from `first` on, `finished(panel, row, sum)`, what becomes of the sum of a row, and FEW_ROWS, the most rows of x for which
// it is not worth while to widen numbers apart.
#pragma once

#include "common/products.h"

namespace {

constexpr int64_t PANEL = 32;       // rows of W
constexpr int64_t MAX_PANELS = 2;   // panels of a task
constexpr int64_t GROUP = MAX_PANELS * PANEL;
constexpr int64_t STRETCH = 256;    // columns
constexpr int64_t MAX_BLOCK = 126;  // rows of x, in tiles of Fma::MAX_ROWS
constexpr int64_t TASKS_PER_THREAD = 4;
constexpr int64_t AHEAD = 2048;     // bytes that are fetched ahead
constexpr int MAX_SUMS = 12;        // vectors of sums that registers hold on any machine

inline floats widened(const int8_t* bytes) {
#if defined(__AVX512F__)
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)bytes)));
#elif defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)bytes)));
#else
    ints own;
    for (int i = 0; i < LANES; i++) own[i] = bytes[i];
    return __builtin_convertvector(own, floats);
#endif
}

// A weight whose numbers are widened alone: a format has their type, `widen` for LANES of them, and
// HAS_SCALES: floats by which a row's sum is multiplied.
//
//     panel    a scale for each row, if the format has them; column after column: 32 numbers
template <class Format>
struct Columns {
    typedef typename Format::Number Number;
    static constexpr int64_t SCALE_BYTES = Format::HAS_SCALES ? PANEL * 4 : 0;
    static constexpr int64_t FEW_ROWS = LANES >= 8 ? 48 : Fma::MAX_ROWS;

    const char* packed;
    int64_t k;

    static int64_t panel_bytes(int64_t k) { return SCALE_BYTES + k * PANEL * int64_t(sizeof(Number)); }
    const char* head(int64_t panel) const { return packed + panel * panel_bytes(k); }

    template <int VECTORS, class Act>
    inline __attribute__((always_inline)) void columns(int64_t panel, int64_t first, int64_t begin,
                                                       int64_t end, Act act) const {
        const auto* from = (const Number*)(head(panel) + SCALE_BYTES) + begin * PANEL + first;
        for (int64_t column = begin; column < end; column++, from += PANEL) {
            __builtin_prefetch((const char*)from + AHEAD);
            floats own[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) own[v] = Format::widen(from + v * LANES);
            act(column, own);
        }
    }

    float finished(int64_t panel, int64_t row, float sum) const {
        return Format::HAS_SCALES ? sum * ((const float*)head(panel))[row] : sum;
    }
};

template <class Weights>
struct Widening {
    const float* x;
    Weights weights;
    const float* bias;  // null if there is none
    float* y;
    int64_t y_stride;
    int64_t num_rows, n, k;  // M, N, K
    int64_t panels_at_once, num_blocks, num_tasks, next_task;

    int64_t num_panels() const { return ratio_up(n, PANEL); }

    // Puts the sums of one row by `count` rows of W to y, from `column` on. The rows of W are
    // within a panel, or begin with a panel's first.
    __attribute__((noinline)) void put(int64_t row, int64_t column, const float* sums, int64_t count) const {
        float* place = y + row * y_stride + column;
        for (int64_t i = 0; i < smaller(count, n - column); i++) {
            const int64_t at = column + i;
            const float sum = weights.finished(at / PANEL, at % PANEL, sums[i]);
            place[i] = bias ? sum + bias[at] : sum;
        }
    }
};

constexpr int vectors_at_once(int rows) {
    int out = PANEL / LANES;
    while (out > 1 && out * rows > MAX_SUMS) out /= 2;
    return out;
}

// Multiplies ROWS rows of x, from `row` on, by one panel.
template <class Weights, int ROWS>
__attribute__((noinline)) void add_panel(const Widening<Weights>& h, int64_t row, int64_t panel) {
    constexpr int VECTORS = vectors_at_once(ROWS), PART = VECTORS * LANES;
    const int64_t k = h.k;
    for (int64_t first = 0; first < PANEL; first += PART) {
        const float* x = h.x + row * k;
        floats sums[ROWS][VECTORS] = {};
        const auto add = [&](int64_t column, const floats (&weights)[VECTORS]) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++)
                    sums[r][v] = sums[r][v] + splat(x[r * k + column]) * weights[v];
        };
        h.weights.template columns<VECTORS>(panel, first, 0, k, add);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {  // unrolled, or the sums would not be in registers
            float own[PART];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) store(own + v * LANES, sums[r][v]);
            h.put(row + r, panel * PANEL + first, own, PART);
        }
    }
}

template <class Weights>
void add_panel(const Widening<Weights>& h, int64_t row, int64_t count, int64_t panel) {
    switch (count) {
        case 1: return add_panel<Weights, 1>(h, row, panel);
        case 2: return add_panel<Weights, 2>(h, row, panel);
        case 3: return add_panel<Weights, 3>(h, row, panel);
        case 4: return add_panel<Weights, 4>(h, row, panel);
        case 5: return add_panel<Weights, 5>(h, row, panel);
        default: return add_panel<Weights, Fma::MAX_ROWS>(h, row, panel);
    }
}

// The memory of a thread.
struct alignas(LINE) Space {
    float weights[STRETCH * GROUP];
    float sums[MAX_BLOCK * GROUP];
};

template <class Weights>
void widen_stretch(const Widening<Weights>& h, int64_t panel, int64_t count, int64_t begin, int64_t end,
                   float* weights) {
    constexpr int VECTORS = vectors_at_once(1);
    for (int64_t i = 0; i < count; i++)
        for (int64_t first = 0; first < PANEL; first += VECTORS * LANES) {
            float* out = weights + i * PANEL + first - begin * GROUP;
            const auto keep = [&](int64_t column, const floats (&own)[VECTORS]) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) store(out + column * GROUP + v * LANES, own[v]);
            };
            h.weights.template columns<VECTORS>(panel + i, first, begin, end, keep);
        }
}

// Multiplies a block of rows by some panels.
template <class Weights>
void do_task(const Widening<Weights>& h, int64_t task, Space& space) {
    const int64_t panel = task / h.num_blocks * h.panels_at_once, block = task % h.num_blocks;
    const int64_t count = smaller(h.panels_at_once, h.num_panels() - panel);
    const int64_t first = h.num_rows * block / h.num_blocks;
    const int64_t num_rows = h.num_rows * (block + 1) / h.num_blocks - first;
    const int64_t num_tiles = ratio_up(num_rows, Fma::MAX_ROWS);
    Fma::Registers registers;
    for (int64_t begin = 0; begin < h.k; begin += STRETCH) {
        const int64_t end = smaller(begin + STRETCH, h.k);
        widen_stretch(h, panel, count, begin, end, space.weights);
        for (int64_t i = 0; i < num_tiles; i++) {
            const int64_t row = num_rows * i / num_tiles;
            const float* x = h.x + (first + row) * h.k + begin;
            multiply({(const uint32_t*)x, h.k, (const uint32_t*)space.weights, GROUP, end - begin,
                      space.sums + row * GROUP, GROUP, begin > 0},
                     num_rows * (i + 1) / num_tiles - row, count * PANEL, registers);
        }
    }
    for (int64_t row = 0; row < num_rows; row++)
        h.put(first + row, panel * PANEL, space.sums + row * GROUP, count * PANEL);
}

template <class Weights>
void do_panels(void* argument) {
    Widening<Weights>& h = *(Widening<Weights>*)argument;
    const int64_t num_tiles = ratio_up(h.num_rows, Fma::MAX_ROWS);
    int64_t panel;
    while ((panel = __atomic_fetch_add(&h.next_task, 1, __ATOMIC_RELAXED)) < h.num_tasks)
        for (int64_t i = 0; i < num_tiles; i++) {
            const int64_t row = h.num_rows * i / num_tiles;
            add_panel(h, row, h.num_rows * (i + 1) / num_tiles - row, panel);
        }
}

template <class Weights>
void do_tasks(void* argument) {
    Widening<Weights>& h = *(Widening<Weights>*)argument;
    Space space;
    int64_t task;
    while ((task = __atomic_fetch_add(&h.next_task, 1, __ATOMIC_RELAXED)) < h.num_tasks)
        do_task(h, task, space);
}

// Multiplies: x [M, K] is contiguous, rows of y are `y_stride` apart; bias [N] or null.
template <class Weights>
void multiply_widening(const float* x, int64_t m, const Weights& weights, const float* bias, int64_t n,
                       int64_t k, float* y, int64_t y_stride, int64_t num_threads) {
    if (m == 0 || n == 0) return;
    Widening<Weights> h{x, weights, bias, y, y_stride, m, n, k, 1, 1, 0, 0};
    const int64_t num_panels = h.num_panels();
    const bool is_small = m <= Weights::FEW_ROWS;
    if (!is_small) {
        h.panels_at_once = num_panels / (TASKS_PER_THREAD * num_threads);
        h.panels_at_once = smaller(larger(h.panels_at_once, 1), MAX_PANELS);
        h.num_blocks = ratio_up(m, MAX_BLOCK);
    }
    h.num_tasks = ratio_up(num_panels, h.panels_at_once) * h.num_blocks;
    in_parallel(smaller(num_threads, h.num_tasks),
                is_small ? do_panels<Weights> : do_tasks<Weights>, &h);
}

}  // namespace
