// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include "linear/bf16_storage.cpp"
//
#include "sanitized.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600};
    const int64_t m = 1 + below(below(2) ? 8 : 150), n = 1 + below(200), k = WIDTHS[below(7)];
    const int64_t num_threads = 1 + below(4), num_halves = ratio_up(n, PANEL) * PANEL * k;
    float* x = zeros<float>(m * k);
    uint32_t* weight = fresh<uint32_t>(n * k);
    for (int64_t i = 0; i < n * k; i++) weight[i] &= 0xffff0000u;
    float* bias = below(2) ? zeros<float>(n) : nullptr;
    float* y = zeros<float>(m * n);
    uint16_t* packed = fresh<uint16_t>(num_halves);
    int64_t* indices = fresh<int64_t>(3);
    uint32_t* rows = fresh<uint32_t>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    if (!quire_bf16_storage_fits(weight, n * k)) abort();
    quire_bf16_storage_pack(weight, n, k, packed, num_threads);
    quire_bf16_storage(x, m, packed, bias, n, k, y, num_threads);
    if (!quire_bf16_storage_rows(indices, 3, packed, n, k, rows)) abort();
    for (int64_t i = 0; i < 3; i++)
        if (memcmp(rows + i * k, weight + indices[i] * k, size_t(k) * 4)) abort();
    indices[2] = n;
    if (quire_bf16_storage_rows(indices, 3, packed, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, packed, indices, rows};
    give_back(taken);
}

}  // namespace
