// grouped: y[M, N] = x[M, K] W[N, K]^T + bias in floats over weights of small integers, in four bits or
// a byte, with a scale, and maybe an offset, for each group of columns of a row.
//
//     W = number * scale[group] + offset[group]
//
// Packed: panels of 32 rows of W, each of which says its form.
//
//     panel[N / 32] {
//         PanelForm form;  // a line
//         { half or float scale[32], offset[32]; numbers[group_size / 8]; }[K / group_size]
//     }
//     numbers  of bytes 8 columns of 32 rows; of nibbles 32 words, column i in bits 4i to 4i + 3
//
// Without offsets a nibble is the number plus 8. Beyond W scales, offsets and numbers are 0. Weights of
// different forms that are joined follow each other: each begins with a panel that says its rows.
#include "linear/quantised/grouped_panels.h"

namespace {

struct Packing {
    const int8_t* numbers;
    const char *scales, *offsets;
    Panels panels;
    PanelForm form;
    int64_t next_panel;
};

inline int32_t zero_of(const Panels& panels) { return panels.has_offsets ? 0 : ZERO; }

// The number of a row in a column of the group whose numbers begin at `from`.
inline int32_t number(const Panels& panels, const char* from, int64_t column, int64_t row) {
    if (panels.is_bytes) return int8_t(from[column * PANEL + row % PANEL]);
    uint32_t word;
    memcpy(&word, from + (column / STEP * PANEL + row % PANEL) * 4, 4);
    return int32_t(word >> (column % STEP * 4) & 15) - zero_of(panels);
}

void pack_numbers(const Panels& panels, const int8_t* numbers, int64_t row, char* out) {
    if (panels.is_bytes) {
        for (int64_t i = 0; i < panels.group_size; i++) out[i * PANEL + row % PANEL] = char(numbers[i]);
        return;
    }
    for (int64_t i = 0; i < panels.group_size; i += STEP) {
        uint32_t word = 0;
        for (int j = 0; j < STEP; j++)
            word |= uint32_t((numbers[i + j] + zero_of(panels)) & 15) << (4 * j);
        memcpy(out + (i / STEP * PANEL + row % PANEL) * 4, &word, 4);
    }
}

void pack_group(const Packing& p, int64_t row, int64_t group, char* place) {
    const int64_t size = p.panels.scale_bytes, at = (row * p.panels.num_groups + group) * size;
    char* lane = place + row % PANEL * size;
    memcpy(lane, p.scales + at, size_t(size));
    if (p.panels.has_offsets) memcpy(lane + PANEL * size, p.offsets + at, size_t(size));
    pack_numbers(p.panels, p.numbers + row * p.panels.k + group * p.panels.group_size, row,
                 place + p.panels.head_bytes);
}

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    const Panels& to = p.panels;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < to.num_panels()) {
        char* head = (char*)to.packed + panel * to.panel_bytes;
        memset(head, 0, size_t(to.panel_bytes));
        memcpy(head, &p.form, sizeof p.form);
        for (int64_t row = panel * PANEL; row < smaller((panel + 1) * PANEL, to.n); row++)
            for (int64_t group = 0; group < to.num_groups; group++)
                pack_group(p, row, group, (char*)to.group(panel, group));
    }
}

// Calls act(panels, row) for each of the weights that were joined, where `row` is its first.
template <class Act>
void each_weight(const void* packed, int64_t n, int64_t k, Act act) {
    const char* at = (const char*)packed;
    for (int64_t row = 0; row < n;) {
        const Panels panels(at, smaller(n - row, ((const PanelForm*)at)->num_rows), k, *(const PanelForm*)at);
        act(panels, row);
        row += panels.n;
        at += panels.num_panels() * panels.panel_bytes;
    }
}

// A row of W: each product is rounded, and then its sum with the offset.
void widen_row(const Panels& panels, int64_t row, float* y) {
    const int64_t size = panels.scale_bytes, lane = row % LANES, first = row % PANEL - lane;
    for (int64_t group = 0; group < panels.num_groups; group++, y += panels.group_size) {
        const char* place = panels.group(row / PANEL, group);
        const float scale = load_factors(place, first, size)[lane];
        for (int64_t i = 0; i < panels.group_size; i++)
            y[i] = float(number(panels, place + panels.head_bytes, i, row)) * scale;
        if (!panels.has_offsets) continue;
        const float offset = load_factors(place + PANEL * size, first, size)[lane];
        for (int64_t i = 0; i < panels.group_size; i++) y[i] += offset;
    }
}

}  // namespace

extern "C" int64_t quire_grouped_panel_bytes(const PanelForm* form, int64_t k) {
    return Panels(nullptr, PANEL, k, *form).panel_bytes;
}

extern "C" void quire_grouped_pack(const PanelForm* form, const int8_t* numbers, const void* scales,
                                   const void* offsets, int64_t n, int64_t k, char* packed,
                                   int64_t num_threads) {
    const Panels panels(packed, n, k, *form);
    Packing packing{numbers, (const char*)scales, (const char*)offsets, panels, *form, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

extern "C" void quire_grouped(const float* x, int64_t m, const void* packed, const float* bias, int64_t n,
                              int64_t k, float* y, int64_t num_threads) {
    each_weight(packed, n, k, [&](const Panels& panels, int64_t row) {
        const auto multiply = [&](const auto& weights) {
            multiply_widening(x, m, weights, bias ? bias + row : nullptr, panels.n, k, y + row, n,
                              num_threads);
        };
        if (!panels.is_bytes)
            multiply(GroupColumns<Nibbles, true>{panels});
        else if (panels.has_offsets)
            multiply(GroupColumns<Bytes, true>{panels});
        else
            multiply(GroupColumns<Bytes, false>{panels});
    });
}

extern "C" bool quire_grouped_rows(const int64_t* indices, int64_t count, const char* packed, int64_t n,
                                   int64_t k, float* y) {
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= n) return false;
    each_weight(packed, n, k, [&](const Panels& panels, int64_t row) {
        for (int64_t i = 0; i < count; i++)
            if (indices[i] >= row && indices[i] - row < panels.n)
                widen_row(panels, indices[i] - row, y + i * k);
    });
    return true;
}
