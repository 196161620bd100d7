// bf16_storage: linear layers in floats over weights that bfloat16 holds and that are stored so: the
// high halves of floats.
#include "linear/widening_linear.h"

namespace {

constexpr int64_t PACKED_COLUMNS = 64;  // at a time

struct Bf16Format {
    typedef uint16_t Number;
    static constexpr bool HAS_SCALES = false;

    static inline floats widen(const uint16_t* halves) {
        uint32_t bits[LANES];
        for (int i = 0; i < LANES; i++) bits[i] = uint32_t(halves[i]) << 16;
        floats out;
        memcpy(&out, bits, sizeof out);
        return out;
    }
};

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

extern "C" bool quire_bf16_storage_fits(const uint32_t* weight, int64_t count) {
    constexpr int64_t STEP = 1024;
    for (int64_t first = 0; first < count; first += STEP) {
        uint32_t bits = 0;
        for (int64_t i = first; i < smaller(first + STEP, count); i++) bits |= weight[i];
        if (bits & 0xffff) return false;
    }
    return true;
}

extern "C" void quire_bf16_storage_pack(const uint32_t* weight, int64_t n, int64_t k,
                                        uint16_t* packed, int64_t num_threads) {
    Packing packing{weight, packed, n, k, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

extern "C" void quire_bf16_storage(const float* x, int64_t m, const void* packed, const float* bias,
                                   int64_t n, int64_t k, float* y, int64_t num_threads) {
    multiply_widening(x, m, Columns<Bf16Format>{(const char*)packed, k}, bias, n, k, y, n,
                      num_threads);
}

extern "C" bool quire_bf16_storage_rows(const int64_t* indices, int64_t count,
                                        const uint16_t* packed, int64_t n, int64_t k, uint32_t* y) {
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const uint16_t* from = packed + indices[i] / PANEL * k * PANEL + indices[i] % PANEL;
        for (int64_t column = 0; column < k; column++)
            y[i * k + column] = uint32_t(from[column * PANEL]) << 16;
    }
    return true;
}
