// w8a32: linear layers in floats over weights stored as int8 with a scale for each row, for CPUs that
// have no product of int8: the same weights as w8a8.cpp's, while x stays as it is.
#include "linear/widening_linear.h"
#include "common/scale.h"

namespace {

struct Int8Format {
    typedef int8_t Number;
    static constexpr bool HAS_SCALES = true;

    static inline floats widen(const int8_t* bytes) { return widened(bytes); }
};

struct Packing {
    const float* weight;
    char* packed;
    int64_t n, k, next_panel;
};

Scale scale_of(const float* row, int64_t k) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < k; i++) {
        uint32_t bits;
        memcpy(&bits, row + i, 4);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return scale_for(largest);
}

void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    const int64_t panel_bytes = Columns<Int8Format>::panel_bytes(p.k);
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < ratio_up(p.n, PANEL)) {
        char* head = p.packed + panel * panel_bytes;
        memset(head, 0, size_t(panel_bytes));
        const int64_t first = panel * PANEL;
        for (int64_t i = 0; i < smaller(PANEL, p.n - first); i++) {
            const float* row = p.weight + (first + i) * p.k;
            const Scale by = scale_of(row, p.k);
            memcpy(head + i * 4, &by.scale, 4);
            int8_t* place = (int8_t*)head + Columns<Int8Format>::SCALE_BYTES + i;
            if (by.inverse != 0)
                for (int64_t column = 0; column < p.k; column++)
                    place[column * PANEL] = int8_t(__builtin_irintf(row[column] * by.inverse));
        }
    }
}

}  // namespace

extern "C" void quire_w8a32_pack(const float* weight, int64_t n, int64_t k, char* packed,
                                 int64_t num_threads) {
    Packing packing{weight, packed, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

extern "C" void quire_w8a32(const float* x, int64_t m, const void* packed, const float* bias,
                            int64_t n, int64_t k, float* y, int64_t num_threads) {
    multiply_widening(x, m, Columns<Int8Format>{(const char*)packed, k}, bias, n, k, y, n,
                      num_threads);
}

extern "C" bool quire_w8a32_rows(const int64_t* indices, int64_t count, const char* packed,
                                 int64_t n, int64_t k, float* y) {
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const char* head = packed + indices[i] / PANEL * Columns<Int8Format>::panel_bytes(k);
        const int64_t row = indices[i] % PANEL;
        const int8_t* from = (const int8_t*)head + Columns<Int8Format>::SCALE_BYTES + row;
        float scale;
        memcpy(&scale, head + row * 4, 4);
        for (int64_t column = 0; column < k; column++)
            y[i * k + column] = float(from[column * PANEL]) * scale;
    }
    return true;
}
