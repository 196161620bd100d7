// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include "linear/quantised/w8a32.cpp"
//
#include "sanitized.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600};
    const int64_t m = 1 + below(below(2) ? 8 : 150), n = 1 + below(200), k = WIDTHS[below(7)];
    const int64_t num_threads = 1 + below(4);
    float* x = zeros<float>(m * k);
    float* weight = zeros<float>(n * k);
    for (int64_t i = 0; i < n * k; i++) weight[i] = float(below(1000)) - 500;
    if (below(4) == 0) weight[below(n * k)] = __builtin_inff();
    float* bias = below(2) ? zeros<float>(n) : nullptr;
    float* y = zeros<float>(m * n);
    char* packed = fresh<char>(ratio_up(n, PANEL) * PANEL * (k + 4));
    int64_t* indices = fresh<int64_t>(3);
    float* rows = fresh<float>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    quire_w8a32_pack(weight, n, k, packed, num_threads);
    quire_w8a32(x, m, packed, bias, n, k, y, num_threads);
    if (!quire_w8a32_rows(indices, 3, packed, n, k, rows)) abort();
    indices[2] = n;
    if (quire_w8a32_rows(indices, 3, packed, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, packed, indices, rows};
    give_back(taken);
}

}  // namespace
