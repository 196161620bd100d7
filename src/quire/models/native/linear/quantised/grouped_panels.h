// Weights in groups, as grouped.cpp says: where the parts of a panel lie, and how its numbers become
// floats.
#pragma once

#include "linear/widening_linear.h"

namespace {

constexpr int STEP = 8;      // columns, of which groups are whole multiples
constexpr int32_t ZERO = 8;  // the nibble of a number that is 0, where there are no offsets

// A weight, and the bytes of its parts.
struct Panels {
    const char* packed;
    int64_t n, k, group_size, num_groups;  // groups of a row
    int64_t scale_bytes, head_bytes, group_bytes, panel_bytes;
    bool is_bytes, has_offsets;

    Panels(const char* packed, int64_t n, int64_t k, const PanelForm& form)
        : packed(packed),
          n(n),
          k(k),
          group_size(form.group_size),
          num_groups(ratio_up(k, group_size)),
          scale_bytes(form.scale_bytes),
          head_bytes(PANEL * scale_bytes * (form.has_offsets ? 2 : 1)),
          group_bytes(head_bytes + group_size * PANEL * form.num_bits / 8),
          panel_bytes(LINE + num_groups * group_bytes),
          is_bytes(form.num_bits == 8),
          has_offsets(form.has_offsets) {}

    int64_t num_panels() const { return ratio_up(n, PANEL); }
    const char* group(int64_t panel, int64_t i) const {
        return packed + panel * panel_bytes + LINE + i * group_bytes;
    }
};

inline floats from_half(const uint16_t* halves) {
#if defined(__AVX512F__)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)halves));
#elif defined(__F16C__)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)halves));
#else
    words own;
    for (int i = 0; i < LANES; i++) own[i] = halves[i];
    const words size = (own & 0x7fff) << 13, sign = (own & 0x8000) << 16;
    const words is_finite = (words)(size < (0x7c00u << 13));
    const floats finite = (floats)size * 0x1p112f;
    return (floats)(sign | (is_finite & (words)finite) | (~is_finite & (size | 0x7f800000u)));
#endif
}

// LANES scales or offsets, from the `i`th on.
inline floats load_factors(const char* from, int64_t i, int64_t num_bytes) {
    return num_bytes == 2 ? from_half((const uint16_t*)from + i) : load((const float*)from + i);
}

// Eight columns of a panel are a word for each row, a nibble a column.
struct Nibbles {
    static constexpr int64_t STEP_BYTES = PANEL * 4, ROW_BYTES = 4;

    // The number of each of LANES rows in a column of a step.
    template <int COLUMN>
    static inline floats widen(const char* step) {
        words own;
        memcpy(&own, step, sizeof own);
        own = own >> (4 * COLUMN);
        if (COLUMN < STEP - 1) own = own & 15;
        return __builtin_convertvector((ints)own, floats);
    }
};

// A byte for each row, column after column.
struct Bytes {
    static constexpr int64_t STEP_BYTES = STEP * PANEL, ROW_BYTES = 1;

    template <int COLUMN>
    static inline floats widen(const char* step) {
        return widened((const int8_t*)step + COLUMN * PANEL);
    }
};

// What a group's numbers are multiplied by, and what is then added.
template <int VECTORS>
struct Factors {
    floats scales[VECTORS], offsets[VECTORS];
};

// W by its columns. Bytes without offsets are HAS_OFFSETS false.
template <class Numbers, bool HAS_OFFSETS>
struct GroupColumns {
    static constexpr int64_t FEW_ROWS = Fma::MAX_ROWS;

    Panels panels;

    template <int VECTORS>
    inline __attribute__((always_inline)) Factors<VECTORS> factors(const char* group, int64_t first) const {
        Factors<VECTORS> out;
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int64_t row = first + v * LANES;
            out.scales[v] = load_factors(group, row, panels.scale_bytes);
            if (panels.has_offsets)
                out.offsets[v] = load_factors(group + PANEL * panels.scale_bytes, row, panels.scale_bytes);
            else if (HAS_OFFSETS)
                out.offsets[v] = out.scales[v] * splat(-float(ZERO));
        }
        return out;
    }

    template <int COLUMN, int VECTORS, class Act>
    static inline __attribute__((always_inline)) void column(const char* step, int64_t at,
                                                             const Factors<VECTORS>& by, Act act) {
        floats own[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            own[v] = Numbers::template widen<COLUMN>(step + v * LANES * Numbers::ROW_BYTES) * by.scales[v];
            if (HAS_OFFSETS) own[v] = own[v] + by.offsets[v];
        }
        act(at + COLUMN, own);
    }

    template <int VECTORS, class Act, int... COLUMN>
    static inline __attribute__((always_inline)) void step(const char* from, int64_t at,
                                                           const Factors<VECTORS>& by, Act act,
                                                           std::integer_sequence<int, COLUMN...>) {
        (column<COLUMN>(from, at, by, act), ...);
    }

    // `begin` and `end` are multiples of STEP.
    template <int VECTORS, class Act>
    inline __attribute__((always_inline)) void columns(int64_t panel, int64_t first, int64_t begin,
                                                       int64_t end, Act act) const {
        for (int64_t i = begin / panels.group_size; i * panels.group_size < end; i++) {
            const char* group = panels.group(panel, i);
            const auto by = factors<VECTORS>(group, first);
            const int64_t start = larger(i * panels.group_size, begin);
            const char* from = group + panels.head_bytes + first * Numbers::ROW_BYTES +
                               (start - i * panels.group_size) / STEP * Numbers::STEP_BYTES;
            for (int64_t at = start; at < smaller((i + 1) * panels.group_size, end); at += STEP) {
                for (int64_t line = 0; line < Numbers::STEP_BYTES; line += LINE)
                    __builtin_prefetch(from + AHEAD + line);
                step(from, at, by, act, std::make_integer_sequence<int, STEP>());
                from += Numbers::STEP_BYTES;
            }
        }
    }

    float finished(int64_t, int64_t, float sum) const { return sum; }
};

}  // namespace
