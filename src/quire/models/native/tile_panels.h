// Products of some rows of x by panels of weights in 12 bits, decoded chunk by chunk into the
// first-level cache, from where tiles take them.
#pragma once

#include "gates.h"
#include "panels.h"
#include "tiles.h"

namespace {

constexpr int64_t MAX_PANEL_ROWS = BLOCK_ROWS;  // of x, where memory is all that matters
constexpr int64_t CHUNK = 32;                   // columns in a row of a tile
constexpr int64_t CHUNK_PAIRS = CHUNK / 2;
constexpr int64_t CHUNK_STEPS = CHUNK / STEP;

// Some columns of a panel, as two tiles take them.
struct alignas(LINE) Chunk {
    uint32_t pairs[PANEL_VECTORS][CHUNK_PAIRS][LANES];
};

inline int64_t num_chunks(const Weights& weights) { return ratio_up(weights.num_columns, CHUNK); }

// The chunk that begins at `column`, zeros beyond the last one.
__attribute__((always_inline)) inline void decode(const Weights& weights, Cursor& panel,
                                                  int64_t column, Chunk& to) {
    const int64_t num_steps = smaller(ratio_up(weights.num_columns - column, STEP), CHUNK_STEPS);
    const auto take = [&](int64_t step) __attribute__((always_inline)) {
        __m512i vectors[STEP_PAIRS * PANEL_VECTORS];
        panel.fetch(FAR);
        panel.take(vectors);
#pragma GCC unroll 4
        for (int v = 0; v < STEP_PAIRS * PANEL_VECTORS; v++)
            _mm512_store_si512(
                to.pairs[v % PANEL_VECTORS][step * STEP_PAIRS + v / PANEL_VECTORS], vectors[v]);
    };
    if (num_steps == CHUNK_STEPS) {
#pragma GCC unroll 8
        for (int64_t step = 0; step < CHUNK_STEPS; step++) take(step);
        return;
    }
    memset(&to, 0, sizeof to);
    for (int64_t step = 0; step < num_steps; step++) take(step);
}

// Up to BLOCK_ROWS rows of x, dense: the last columns, if they fill no chunk, lie once more by
// themselves, with zeros after them.
struct Block {
    const uint16_t* x;
    int64_t num_rows, num_columns;
    alignas(LINE) uint16_t rest[BLOCK_ROWS][CHUNK];

    Block(const uint16_t* x, int64_t num_rows, int64_t num_columns)
        : x(x), num_rows(num_rows), num_columns(num_columns) {
        const int64_t num_rest = num_columns % CHUNK;
        if (!num_rest) return;
        memset(rest, 0, sizeof rest);
        for (int64_t row = 0; row < num_rows; row++)
            memcpy(rest[row], x + (row + 1) * num_columns - num_rest, size_t(num_rest) * 2);
    }
    Block(const Block&) = delete;

    bool has_lower() const { return num_rows > TILE_ROWS; }

    template <bool HAS_LOWER>
    __attribute__((always_inline)) inline void add(const Chunk& w, int64_t column) const {
        const bool is_whole = column + CHUNK <= num_columns;
        const uint16_t* from = is_whole ? x + column : rest[0];
        const int64_t stride = is_whole ? num_columns : CHUNK;
        settle();
        _tile_loadd(6, w.pairs[0], LINE);
        _tile_loadd(4, from, stride * 2);
        _tile_loadd(7, w.pairs[1], LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (HAS_LOWER) _tile_loadd(5, from + TILE_ROWS * stride, stride * 2);
        _tile_dpbf16ps(1, 4, 7);
        if (!HAS_LOWER) return;
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
};

// Of a panel: what is added to its sums, and which of a row of y it makes.
struct Column {
    __m512 bias, next_bias;
    __mmask32 is_there;

    Column(const Weights& weights, int64_t panel) {
        const int64_t row = panel * PANEL, count = smaller(weights.num_rows - row, PANEL);
        is_there = __mmask32((uint64_t(1) << count) - 1);
        bias = bias_of(weights, row);
        next_bias = bias_of(weights, row + LANES);
    }

    void put(uint16_t* y, __m512 a, __m512 b) const {
        _mm512_mask_storeu_epi16(y, is_there, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
};

// The tiles' sums to where the product of a block by a panel goes.
template <bool HAS_LOWER>
__attribute__((always_inline)) inline void put_sums(const Weights& weights, int64_t panel,
                                                    int64_t num_rows, uint16_t* y, int64_t stride) {
    alignas(LINE) float sums[BLOCK_ROWS][PANEL];
    store_sums<HAS_LOWER>(sums, PANEL);
    const Column column(weights, panel);
    for (int64_t r = 0; r < num_rows; r++)
        column.put(y + r * stride, _mm512_add_ps(_mm512_load_ps(sums[r]), column.bias),
                   _mm512_add_ps(_mm512_load_ps(sums[r] + LANES), column.next_bias));
}

// A panel of gates, whose sums wait in memory, and one of what they let through.
struct Couple {
    int64_t gates, values;
    int64_t act;
};

// The same where the tiles have a couple's second sums; `gates` [BLOCK_ROWS, PANEL] are the first.
template <bool HAS_LOWER>
__attribute__((always_inline)) inline void put_gated(const Weights& weights, const Couple& couple,
                                                     const float* gates, int64_t num_rows,
                                                     uint16_t* y, int64_t stride) {
    alignas(LINE) float sums[BLOCK_ROWS][PANEL];
    store_sums<HAS_LOWER>(sums, PANEL);
    const Column column(weights, couple.gates), next(weights, couple.values);
    const auto as_put = [](const float* place, __m512 bias) __attribute__((always_inline)) {
        return rounded<bf16>((floats)_mm512_add_ps(_mm512_load_ps(place), bias));
    };
    for (int64_t r = 0; r < num_rows; r++) {
        const float* own = gates + r * PANEL;
        const floats a = gated<bf16>(couple.act, as_put(own, column.bias),
                                     as_put(sums[r], next.bias));
        const floats b = gated<bf16>(couple.act, as_put(own + LANES, column.next_bias),
                                     as_put(sums[r] + LANES, next.next_bias));
        column.put(y + r * stride, (__m512)a, (__m512)b);
    }
}

// Up to MAX_PANEL_ROWS rows of x, dense, by one panel after the other.
class PanelProduct {
    const Weights& weights;
    const Block block;
    Tiles tiles;

    // A chunk is decoded while the one before is multiplied.
    template <bool HAS_LOWER>
    __attribute__((always_inline)) inline void sum(int64_t i) const {
        const int64_t k = weights.num_columns;
        Chunk chunks[2];
        Cursor panel = weights.panel(i, 0);
        clear_sums();
        decode(weights, panel, 0, chunks[0]);
        for (int64_t column = 0, turn = 0; column < k; column += CHUNK, turn ^= 1) {
            if (column + CHUNK < k) decode(weights, panel, column + CHUNK, chunks[turn ^ 1]);
            block.add<HAS_LOWER>(chunks[turn], column);
        }
    }

    template <bool HAS_LOWER>
    __attribute__((noinline)) void put_as(int64_t panel, uint16_t* y, int64_t stride) const {
        sum<HAS_LOWER>(panel);
        put_sums<HAS_LOWER>(weights, panel, block.num_rows, y, stride);
    }

    template <bool HAS_LOWER>
    __attribute__((noinline)) void put_as(const Couple& couple, uint16_t* y, int64_t stride) const {
        alignas(LINE) float gates[BLOCK_ROWS * PANEL];
        sum<HAS_LOWER>(couple.gates);
        store_sums<HAS_LOWER>(gates, PANEL);
        sum<HAS_LOWER>(couple.values);
        put_gated<HAS_LOWER>(weights, couple, gates, block.num_rows, y, stride);
    }

   public:
    PanelProduct(const Weights& weights, const uint16_t* x, int64_t num_rows)
        : weights(weights), block(x, num_rows, weights.num_columns) {
        tiles.shape(num_rows);
    }

    // By a panel, or by a couple. y: where the first row's product goes, those that follow `stride`
    // apart.
    template <class By>
    void put(const By& by, uint16_t* y, int64_t stride) const {
        block.has_lower() ? put_as<true>(by, y, stride) : put_as<false>(by, y, stride);
    }
};

}  // namespace
