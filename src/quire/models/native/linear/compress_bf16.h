// Packs weights as compressed_bf16.h has them, in two passes: the first one chooses the codes and
// finds how large the streams get, the second one writes them.
#pragma once

#include "linear/compressed_bf16.h"

namespace {

// The rows of a panel in W [N, K].
struct Rows {
    const uint16_t* first;
    int64_t count, num_columns;

    Rows(const uint16_t* weight, int64_t n, int64_t k, int64_t panel)
        : first(weight + panel * PANEL * k),
          count(smaller(PANEL, n - panel * PANEL)),
          num_columns(k) {}

    const uint16_t* row(int64_t i) const { return first + smaller(i, count - 1) * num_columns; }
    int64_t num_full_steps() const { return num_columns / STEP; }
};

struct Encoder {
    __m512i high_bytes[NUM_CODES];

    explicit Encoder(const Head& head) {
#pragma GCC unroll 16
        for (int i = 0; i < NUM_CODES; i++)
            high_bytes[i] = _mm512_set1_epi8(char(head.high_bytes[i]));
    }

    // Returns the code of each high byte, or 255 where it has none.
    __attribute__((always_inline)) inline __m512i codes(__m512i high) const {
        __m512i out = _mm512_set1_epi8(-1);
#pragma GCC unroll 16
        for (int i = 0; i < NUM_CODES; i++)
            out = _mm512_mask_mov_epi8(out, _mm512_cmpeq_epi8_mask(high, high_bytes[i]),
                                       _mm512_set1_epi8(char(i)));
        return out;
    }
};

inline __m512i high_bytes_of(__m512i a, __m512i b) {
    return _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
}

inline __m512i low_bytes_of(__m512i a, __m512i b) {
    const __m512i low = _mm512_set1_epi16(255);
    return _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
}

// Gives codes to the high bytes that are most frequent, the commonest first.
inline void choose_codes(const Rows& rows, Head& head) {
    uint32_t counts[STEP][256] = {};
    for (int64_t r = 0; r < rows.count; r++) {
        const uint16_t* row = rows.row(r);
        for (int64_t i = 0; i < rows.num_columns; i++) counts[i % STEP][row[i] >> 8]++;
    }
    for (int i = 0; i < 256; i++) counts[0][i] += counts[1][i] + counts[2][i] + counts[3][i];
    for (int code = 0; code < NUM_CODES; code++) {
        int best = 0;
        for (int i = 1; i < 256; i++)
            if (counts[0][i] > counts[0][best]) best = i;
        head.high_bytes[code] = uint8_t(best);
        counts[0][best] = 0;
    }
}

// Counts the steps that must stay whole. Steps side by side in a row are side by side in a vector
// too.
inline int64_t count_whole_steps(const Rows& rows, const Head& head) {
    const Encoder encoder(head);
    const __m512i filling = _mm512_slli_epi16(encoder.high_bytes[0], 8);
    const int64_t num_columns = rows.num_full_steps() * STEP;
    int64_t out = rows.num_columns > num_columns;
    for (int64_t i = 0; i < num_columns; i += LINE) {
        const int64_t rest = num_columns - i;
        const uint64_t is_there = rest < LINE ? (uint64_t(1) << rest) - 1 : ~uint64_t(0);
        __m512i codes = _mm512_setzero_si512();
        for (int64_t r = 0; r < rows.count; r++) {
            const uint16_t* from = rows.row(r) + i;
            __m512i a = _mm512_mask_loadu_epi16(filling, __mmask32(is_there), from);
            __m512i b =
                _mm512_mask_loadu_epi16(filling, __mmask32(is_there >> 32), from + LINE / 2);
            codes = _mm512_or_si512(codes, encoder.codes(high_bytes_of(a, b)));
        }
        out += __builtin_popcount(_mm512_test_epi32_mask(codes, _mm512_set1_epi8(-128)));
    }
    return out;
}

// The pairs of a step: those of its first two columns and those of the next. Missing columns are
// zero.
struct Pairs {
    alignas(LINE) uint32_t first[PANEL], next[PANEL];

    Pairs(const Rows& rows, int64_t step) {
        const int64_t num_columns = smaller(STEP, rows.num_columns - step * STEP);
        for (int64_t r = 0; r < PANEL; r++) {
            uint32_t both[2] = {};
            if (num_columns == STEP)
                memcpy(both, rows.row(r) + step * STEP, sizeof both);
            else
                memcpy(both, rows.row(r) + step * STEP, size_t(num_columns) * 2);
            first[r] = both[0];
            next[r] = both[1];
        }
    }
};

inline void write_stream(const Rows& rows, const Head& head, uint8_t* stream) {
    const Encoder encoder(head);
    uint32_t* whole = (uint32_t*)stream;
    uint8_t* at = stream + head.list_bytes();
    for (int64_t step = 0; step * STEP < rows.num_columns; step++) {
        const Pairs pairs(rows, step);
        const __m512i a = _mm512_load_si512(pairs.first);
        const __m512i b = _mm512_load_si512(pairs.first + LANES);
        const __m512i c = _mm512_load_si512(pairs.next), d = _mm512_load_si512(pairs.next + LANES);
        const __m512i high = high_bytes_of(a, b), next_high = high_bytes_of(c, d);
        const __m512i codes = encoder.codes(high), next_codes = encoder.codes(next_high);
        _mm512_storeu_si512(at, low_bytes_of(a, b));
        _mm512_storeu_si512(at + LINE, low_bytes_of(c, d));
        at += 2 * LINE;
        const bool is_coded = !_mm512_movepi8_mask(_mm512_or_si512(codes, next_codes));
        if (is_coded && step < rows.num_full_steps()) {
            _mm512_storeu_si512(at, _mm512_or_si512(codes, _mm512_slli_epi16(next_codes, 4)));
            at += LINE;
            continue;
        }
        *whole++ = uint32_t(step);
        _mm512_storeu_si512(at, high);
        _mm512_storeu_si512(at + LINE, next_high);
        at += 2 * LINE;
    }
    const uint8_t* end = stream + head.list_bytes();
    memset(whole, 255, size_t(end - (const uint8_t*)whole));
}

struct Packing {
    const uint16_t* weight;
    uint8_t* packed;  // in the first pass the heads alone
    int64_t num_rows, num_columns;
    bool is_first_pass;
    int64_t next_panel;

    int64_t num_panels() const { return ratio_up(num_rows, PANEL); }
    int64_t num_steps() const { return ratio_up(num_columns, STEP); }

    void pack(int64_t panel) const {
        const Rows rows(weight, num_rows, num_columns, panel);
        Head& head = ((Head*)packed)[panel];
        if (!is_first_pass) return write_stream(rows, head, packed + head.offset);
        choose_codes(rows, head);
        head.num_whole = count_whole_steps(rows, head);
    }

    // Places each stream, and returns the bytes of the whole packed weight.
    int64_t place_streams() {
        int64_t offset = num_panels() * int64_t(sizeof(Head));
        for (int64_t i = 0; i < num_panels(); i++) {
            Head& head = ((Head*)packed)[i];
            head.offset = offset;
            offset += head.num_bytes(num_steps());
        }
        return offset;
    }
};

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < p.num_panels())
        p.pack(panel);
}

}  // namespace
