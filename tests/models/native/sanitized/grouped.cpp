// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells. Weights are quantised in groups, or given so, and joined with others.
#include "linear/quantised/grouped.cpp"
//
#include "linear/quantised/group_weights.cpp"
//
#include "sanitized.h"

namespace {

void run_one() {
    static const int64_t SIZES[] = {8, 16, 32, 96, 256};
    const bool is_chosen = below(2);
    const int64_t size = is_chosen ? 16 * (1 + below(2)) : SIZES[below(5)], groups = 1 + below(5);
    const int64_t m = below(below(2) ? 8 : 150), n = 1 + below(200), k = size * groups;
    const int64_t num_bits = 4 * (1 + below(2)), num_threads = 1 + below(4);
    const bool has_offsets = is_chosen ? num_bits == 4 : below(2);
    const PanelForm form{size, num_bits, is_chosen ? 2 : 2 * (1 + below(2)), has_offsets, n};
    int8_t* numbers = fresh<int8_t>(n * k);
    char* scales = fresh<char>(n * groups * form.scale_bytes);
    char* offsets = has_offsets ? fresh<char>(n * groups * form.scale_bytes) : nullptr;
    float* weight = zeros<float>(n * k);
    for (int64_t i = 0; i < n * k; i++) weight[i] = float(below(1000)) - 500;
    if (below(4) == 0) weight[below(n * k)] = __builtin_inff();
    if (is_chosen)
        quire_group_weights(weight, n, k, size, num_bits, numbers, scales, offsets, num_threads);
    const int64_t num_bytes = ratio_up(n, PANEL) * quire_grouped_panel_bytes(&form, k);
    char* packed = (char*)aligned_alloc(LINE, size_t(2 * num_bytes));
    for (int i = 0; i < 2; i++)
        quire_grouped_pack(&form, numbers, scales, offsets, n, k, packed + i * num_bytes, num_threads);
    float* x = zeros<float>(m * k);
    float* bias = below(2) ? zeros<float>(2 * n) : nullptr;
    float* y = zeros<float>(m * 2 * n);
    quire_grouped(x, m, packed, bias, 2 * n, k, y, num_threads);
    int64_t* indices = fresh<int64_t>(3);
    float* rows = fresh<float>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(2 * n);
    if (!quire_grouped_rows(indices, 3, packed, 2 * n, k, rows)) abort();
    indices[2] = 2 * n;
    if (quire_grouped_rows(indices, 3, packed, 2 * n, k, rows)) abort();
    const void* taken[] = {numbers, scales, offsets, weight, packed, x, bias, y, indices, rows};
    give_back(taken);
}

}  // namespace
