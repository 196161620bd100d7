// bfloat16 weights in 12 bits, without loss. The low byte of a weight, an exponent bit and the
// mantissa, is kept as it is. Its high byte, sign and seven exponent bits, is nearly always one of
// the 16 commonest of the rows around it, and then kept as its place among these.
//
// Packed: panels of 32 rows of W, each a stream of steps of 4 columns, two pairs.
//
//     packed   Head[panels] | streams
//     stream   numbers of the whole steps, rising, then NO_STEP, filled up to lines | steps
//     step     64 low bytes of a pair | 64 of the next | 64 codes, the first pair's in the low half
//     whole    64 low bytes of a pair | 64 of the next | 64 high bytes | 64 of the next
//
// A step is whole where a high byte has no code, or columns are missing. Bytes are in the order in
// which unpacking them gives two vectors for each pair: 16 rows, and 16 more. The last panel is
// filled up with copies of its last row, the last column's pair with zeros.
#pragma once

#include "common/common.h"

namespace {

constexpr int64_t PANEL = 32;  // rows of W
constexpr int64_t STEP = 4;    // columns
constexpr int64_t STEP_PAIRS = STEP / 2;
constexpr int64_t CODED_BYTES = 3 * LINE, WHOLE_BYTES = 4 * LINE;
constexpr int NUM_CODES = 16;
constexpr uint32_t NO_STEP = 0xffffffff;

// The head of a panel.
struct Head {
    int64_t offset;  // where its stream begins, in bytes from the first head
    int64_t num_whole;
    uint8_t high_bytes[NUM_CODES];  // high_bytes[code]
    uint8_t filling[LINE - NUM_CODES - 2 * sizeof(int64_t)];

    int64_t list_bytes() const { return ratio_up((num_whole + 1) * 4, LINE) * LINE; }
    int64_t num_bytes(int64_t num_steps) const {
        return list_bytes() + num_steps * CODED_BYTES + num_whole * (WHOLE_BYTES - CODED_BYTES);
    }
};

// Walks down a panel, step by step.
struct Cursor {
    __m512i high_bytes;
    const uint8_t* at;
    const uint32_t* whole;  // the number of the next whole step
    int64_t step;

    Cursor(const uint8_t* packed, int64_t panel, int64_t first) : step(first) {
        const Head* head = (const Head*)packed + panel;
        const uint8_t* stream = packed + head->offset;
        high_bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)head->high_bytes));
        whole = (const uint32_t*)stream;
        while (*whole < first) whole++;
        const int64_t num_passed = whole - (const uint32_t*)stream;
        at = stream + head->list_bytes() + first * CODED_BYTES +
             num_passed * (WHOLE_BYTES - CODED_BYTES);
    }

    // Fetches the lines of a coded step, `distance` bytes on, into the cache of a level; beyond the
    // end that does nothing.
    template <int LEVEL>
    void fetch(int64_t distance) const {
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) __builtin_prefetch(at + distance + i * LINE, 0, 4 - LEVEL);
    }

    bool is_whole() const { return int64_t(*whole) == step; }

    void pass() {
        at += is_whole() ? WHOLE_BYTES : CODED_BYTES;
        whole += is_whole();
        step++;
    }

    // Decodes a step into the two vectors of its first pair, then those of the next.
    __attribute__((always_inline)) inline void take(__m512i (&vectors)[4]) {
        const __m512i low = line(0), next_low = line(1);
        __m512i high = line(2), next_high;
        if (__builtin_expect(is_whole(), false)) {
            next_high = line(3);
            at += WHOLE_BYTES;
            whole++;
        } else {
            const __m512i half = _mm512_set1_epi8(15);
            next_high = _mm512_and_si512(_mm512_srli_epi16(high, 4), half);
            high = _mm512_shuffle_epi8(high_bytes, _mm512_and_si512(high, half));
            next_high = _mm512_shuffle_epi8(high_bytes, next_high);
            at += CODED_BYTES;
        }
        step++;
        vectors[0] = _mm512_unpacklo_epi8(low, high);
        vectors[1] = _mm512_unpackhi_epi8(low, high);
        vectors[2] = _mm512_unpacklo_epi8(next_low, next_high);
        vectors[3] = _mm512_unpackhi_epi8(next_low, next_high);
    }

    __m512i line(int i) const { return _mm512_loadu_si512(at + i * LINE); }
};

// Returns where in its line the first of a row's two bytes is.
inline int64_t place_of(int64_t row) { return row % 16 / 4 * 16 + row / 16 * 8 + row % 4 * 2; }

// Copies one row of a panel to y [K].
inline void copy_row(Cursor panel, int64_t row, int64_t num_columns, uint16_t* y) {
    uint8_t high_bytes[LINE];
    _mm512_storeu_si512(high_bytes, panel.high_bytes);
    for (int64_t i = 0; i < num_columns; i += STEP) {
        uint16_t out[STEP];
        for (int64_t j = 0; j < STEP; j++) {
            const uint8_t* at = panel.at + place_of(row) + j % 2;
            const uint8_t code = at[2 * LINE], high = panel.is_whole() ? at[(2 + j / 2) * LINE]
                                                      : high_bytes[j < 2 ? code & 15 : code >> 4];
            out[j] = uint16_t(high << 8 | at[j / 2 * LINE]);
        }
        memcpy(y + i, out, size_t(smaller(STEP, num_columns - i)) * 2);
        panel.pass();
    }
}

}  // namespace
