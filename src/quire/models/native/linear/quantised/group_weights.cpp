// Quantises weights of floats in groups, as grouped.cpp multiplies by them.
#include "linear/quantised/group_weights.h"

namespace {

struct Grouping {
    const float* weight;
    int64_t n, k, group_size, num_bits;
    int8_t* numbers;
    uint16_t *scales, *offsets;
    int64_t next_row;
};

// Whether all numbers of a group, and their range, are finite.
bool is_finite(const Group& g) {
    float sum = g.highest - g.lowest;
    for (int64_t i = 0; i < g.count; i++) sum += g.numbers[i] * 0;
    return sum * 0 == 0;
}

void group_rows(void* argument) {
    Grouping& all = *(Grouping*)argument;
    const int64_t num_groups = all.k / all.group_size;
    int64_t row;
    while ((row = __atomic_fetch_add(&all.next_row, 1, __ATOMIC_RELAXED)) < all.n)
        for (int64_t i = 0; i < num_groups; i++) {
            const int64_t first = row * all.k + i * all.group_size;
            const Group group(all.weight + first, all.group_size);
            Affine by{__builtin_nanf(""), 0};
            if (!is_finite(group))
                memset(all.numbers + first, 0, size_t(all.group_size));
            else
                by = all.num_bits == 4 ? group_nibbles(group, all.numbers + first)
                                       : group_bytes(group, all.numbers + first);
            all.scales[row * num_groups + i] = to_half(by.scale);
            if (all.offsets) all.offsets[row * num_groups + i] = to_half(by.offset);
        }
}

}  // namespace

extern "C" void quire_group_weights(const float* weight, int64_t n, int64_t k, int64_t group_size,
                                    int64_t num_bits, int8_t* numbers, void* scales, void* offsets,
                                    int64_t num_threads) {
    Grouping grouping{weight,  n, k, group_size, num_bits, numbers, (uint16_t*)scales, (uint16_t*)offsets,
                      0};
    in_parallel(num_threads, group_rows, &grouping);
}
