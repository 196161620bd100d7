// Products of some rows of x by panels of weights in 12 bits, decoded chunk by chunk into the
// first-level cache, from where tiles take them.
#pragma once

#include "decoder/activations.h"
#include "linear/panels.h"
#include "common/tiles.h"

namespace {

constexpr int64_t MAX_PANEL_ROWS = BLOCK_ROWS;  // rows of x up to which memory is all that matters
constexpr int64_t CHUNK = 32;                   // columns in a row of a tile
constexpr int64_t CHUNK_PAIRS = CHUNK / 2;
constexpr int64_t CHUNK_STEPS = CHUNK / STEP;
// So many bytes before a cursor the second cache is filled from memory; the first has no space.
constexpr int64_t FAR = 6144;
constexpr int64_t TURN_CHUNKS = 4;  // chunks of a panel until the other one takes its turn

// CHUNK columns of a panel, as two tiles take them.
struct alignas(LINE) Chunk {
    uint32_t pairs[PANEL_VECTORS][CHUNK_PAIRS][LANES];
};

inline int64_t num_chunks(const Weights& weights) { return ratio_up(weights.num_columns, CHUNK); }

// Decodes the chunk that begins at `column`, with zeros beyond the last one. With IS_STREAM memory
// is read ahead.
template <bool IS_STREAM>
__attribute__((always_inline)) inline void decode(const Weights& weights, Cursor& panel,
                                                  int64_t column, Chunk& to) {
    const int64_t num_steps = smaller(ratio_up(weights.num_columns - column, STEP), CHUNK_STEPS);
    const auto take = [&](int64_t step) __attribute__((always_inline)) {
        __m512i vectors[STEP_PAIRS * PANEL_VECTORS];
        if (IS_STREAM) panel.fetch<2>(FAR);
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

// Up to BLOCK_ROWS dense rows of x. The last columns, if they fill no chunk, lie once more by
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

// The sums of a block by a panel.
typedef float Sums[BLOCK_ROWS][PANEL];

// The columns of y that a panel makes, and what is added to its sums.
struct Column {
    __m512 bias, next_bias;
    __mmask32 is_there;

    Column(const Weights& weights, int64_t panel) {
        const int64_t row = panel * PANEL, count = smaller(weights.num_rows - row, PANEL);
        is_there = __mmask32((uint64_t(1) << count) - 1);
        bias = bias_of(weights, row);
        next_bias = bias_of(weights, row + LANES);
    }

    __m512 first(const float* sums) const { return _mm512_add_ps(_mm512_load_ps(sums), bias); }
    __m512 next(const float* sums) const {
        return _mm512_add_ps(_mm512_load_ps(sums + LANES), next_bias);
    }

    // Puts a row of y.
    void put(const float* sums, uint16_t* y) const {
        const __m512i row = (__m512i)_mm512_cvtne2ps_pbh(next(sums), first(sums));
        _mm512_mask_storeu_epi16(y, is_there, row);
    }

    // Returns a row of gates after their activation.
    __attribute__((always_inline)) inline __m512i gates(int64_t act, const float* sums) const {
        const auto acted = [=](__m512 x) __attribute__((always_inline)) {
            return (__m512)::acted<bf16>(act, rounded<bf16>((floats)x));
        };
        return (__m512i)_mm512_cvtne2ps_pbh(acted(next(sums)), acted(first(sums)));
    }

    // Returns a row of y: values multiplied by their gates.
    __attribute__((always_inline)) inline __m512i gated(__m512i gates, const float* sums) const {
        const auto let = [](__m256i gates, __m512 x) __attribute__((always_inline)) {
            const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(gates), 16);
            return (__m512)((floats)wide * rounded<bf16>((floats)x));
        };
        return (__m512i)_mm512_cvtne2ps_pbh(let(_mm512_extracti64x4_epi64(gates, 1), next(sums)),
                                            let(_mm512_castsi512_si256(gates), first(sums)));
    }
};

// A panel of gates, and the panel of the values that they multiply.
struct Couple {
    int64_t gates, values;
    int64_t act;
};

// Multiplies up to MAX_PANEL_ROWS dense rows of x by one panel after the other.
class PanelProduct {
    const Weights& weights;
    const Block block;
    Tiles tiles;

    // Sums the products of a panel: a chunk is decoded while the one before is multiplied.
    template <bool HAS_LOWER>
    __attribute__((noinline)) void sum(int64_t panel, Sums& sums) const {
        const int64_t count = num_chunks(weights);
        Chunk chunks[2];
        Cursor cursor = weights.panel(panel, 0);
        clear_sums();
        decode<true>(weights, cursor, 0, chunks[0]);
        for (int64_t i = 0; i < count; i++) {
            if (i + 1 < count)
                decode<true>(weights, cursor, (i + 1) * CHUNK, chunks[(i + 1) % 2]);
            block.add<HAS_LOWER>(chunks[i % 2], i * CHUNK);
        }
        store_sums<HAS_LOWER>(sums, PANEL);
    }

    // Sums the products of both panels of a couple, which take turns: what one turn reads of x is
    // in the first-level cache for the next.
    template <bool HAS_LOWER>
    __attribute__((noinline)) void sum(const Couple& couple, Sums& gates, Sums& values) const {
        const int64_t count = num_chunks(weights);
        Chunk chunks[2];
        Cursor cursors[2] = {weights.panel(couple.gates, 0), weights.panel(couple.values, 0)};
        int64_t at = 0;  // chunks[at] is decoded
        decode<true>(weights, cursors[0], 0, chunks[at]);
        for (int64_t first = 0; first < count; first += TURN_CHUNKS) {
            const int64_t last = smaller(first + TURN_CHUNKS, count) - 1;
#pragma GCC unroll 2
            for (int which = 0; which < 2; which++) {
                Sums& sums = which ? values : gates;
                first ? load_sums<HAS_LOWER>(sums, PANEL) : clear_sums();
                for (int64_t i = first; i < last; i++, at ^= 1) {
                    decode<true>(weights, cursors[which], (i + 1) * CHUNK, chunks[at ^ 1]);
                    block.add<HAS_LOWER>(chunks[at], i * CHUNK);
                }
                const int64_t next = which ? last + 1 : first;  // where the other turn begins
                if (next < count)
                    decode<true>(weights, cursors[which ^ 1], next * CHUNK, chunks[at ^ 1]);
                block.add<HAS_LOWER>(chunks[at], last * CHUNK);
                at ^= 1;
                store_sums<HAS_LOWER>(sums, PANEL);
            }
        }
    }

   public:
    PanelProduct(const Weights& weights, const uint16_t* x, int64_t num_rows)
        : weights(weights), block(x, num_rows, weights.num_columns) {
        tiles.shape(num_rows);
    }

    // Puts the first row's product to `y`, and those that follow `stride` apart.
    void put(int64_t panel, uint16_t* y, int64_t stride) const {
        alignas(LINE) Sums sums;
        block.has_lower() ? sum<true>(panel, sums) : sum<false>(panel, sums);
        const Column column(weights, panel);
        for (int64_t r = 0; r < block.num_rows; r++) column.put(sums[r], y + r * stride);
    }

    void put(const Couple& couple, uint16_t* y, int64_t stride) const {
        alignas(LINE) Sums gates, values;
        block.has_lower() ? sum<true>(couple, gates, values) : sum<false>(couple, gates, values);
        const Column gate(weights, couple.gates), value(weights, couple.values);
        for (int64_t r = 0; r < block.num_rows; r++) {
            const __m512i acted = gate.gates(couple.act, gates[r]);
            _mm512_storeu_si512(y + r * stride, value.gated(acted, values[r]));
        }
    }
};

}  // namespace
