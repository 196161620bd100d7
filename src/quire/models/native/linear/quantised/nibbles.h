// Weights of four bits, as w4a8.cpp says they are packed, become the bytes that w8a8 multiplies by.
#pragma once

#include "common/quantise.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr int64_t RUN = 32;             // columns that share a step and a begin
constexpr int64_t RUN_LINES = RUN / 8;  // a line is eight columns of 16 rows
constexpr int64_t GROUP_RUNS = GROUP / RUN;
constexpr int64_t STEP_LINES = GROUP_RUNS * LANES / LINE, BEGIN_LINES = 2 * STEP_LINES;
constexpr int64_t HEAD_LINES = STEP_LINES + BEGIN_LINES;
constexpr int64_t GROUP_LINES = HEAD_LINES + GROUP_RUNS * RUN_LINES;
constexpr int FRACTION = 4;  // bits of steps and begins behind the point

// The lines of a panel behind its scales.
inline int64_t nibble_lines(int64_t num_columns) {
    const int64_t whole = num_columns / GROUP, rest = num_columns % GROUP;
    return whole * GROUP_LINES + (rest ? HEAD_LINES + ratio_up(rest, 8) : 0);
}

// Where the step of a run is, for the first of 16 rows, and its begin.
inline uint8_t* step_at(uint8_t* lines, int64_t run) { return lines + run * LANES; }
inline uint16_t* begin_at(uint8_t* lines, int64_t run) {
    return (uint16_t*)(lines + STEP_LINES * LINE) + run * LANES;
}

// The byte of a nibble.
inline int32_t byte_of(int32_t nibble, int32_t step, int32_t begin) {
    return (step * nibble + begin) >> FRACTION;
}

// Four columns of 16 rows: each nibble becomes the byte of its run.
struct Widened {
    __m512i even, odd, begin;

    Widened(uint8_t* lines, int64_t run) {
        even = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)step_at(lines, run)));
        even = _mm512_or_si512(even, _mm512_slli_epi32(even, 16));
        odd = _mm512_slli_epi16(even, 8);
        begin = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)begin_at(lines, run)));
        begin = _mm512_or_si512(begin, _mm512_slli_epi32(begin, 16));
    }

    __m512i operator()(__m512i nibbles) const {
        const __m512i low = _mm512_add_epi16(_mm512_maddubs_epi16(even, nibbles), begin);
        const __m512i high = _mm512_add_epi16(_mm512_maddubs_epi16(odd, nibbles), begin);
        const __m512i upper = _mm512_slli_epi16(high, 8 - FRACTION);
        return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(low, FRACTION), upper);
    }
};

// Writes the steps of a group of `num_columns` columns; `lines` are those of the group. An odd number
// of steps is one more. Calls fetch(line) for each line that it reads.
template <class Fetch>
inline void decode_group(const uint8_t* lines, int64_t num_columns, uint8_t* out, Fetch&& fetch) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t* from = lines + HEAD_LINES * LINE;
    for (int64_t run = 0; run * RUN < num_columns; run++) {
        const Widened widened((uint8_t*)lines, run);
        const int64_t count = smaller(RUN_LINES, ratio_up(num_columns - run * RUN, 8));
        for (int64_t i = 0; i < count; i++, from += LINE, out += 2 * LINE) {
            fetch(from);
            const __m512i both = _mm512_loadu_si512(from);
            _mm512_storeu_si512(out, widened(_mm512_and_si512(both, low)));
            _mm512_storeu_si512(out + LINE,
                                widened(_mm512_and_si512(_mm512_srli_epi16(both, 4), low)));
        }
    }
}

}  // namespace

#endif
