// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include "linear/quantised/w4a8.cpp"
//
#include "outliers.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600};
    const bool is_bf16 = below(2);
    const int64_t m = 1 + below(90), n = 1 + below(200), k = WIDTHS[below(7)];
    const int64_t size = is_bf16 ? 2 : 4, num_threads = 1 + below(4);
    char* x = fresh<char>(m * k * size);
    char* weight = fresh<char>(n * k * size);
    char* bias = below(2) ? fresh<char>(n * size) : nullptr;
    char* y = fresh<char>(m * n * size);
    int32_t* outliers = k >= OUTLIERS && below(2) ? fresh_outliers(k) : nullptr;
    const int64_t num_lines = quire_w4a8_lines(k) + (outliers ? OUTLIER_LINES : 0);
    uint8_t* packed = fresh<uint8_t>(ratio_up(n, LANES) * num_lines * LINE);
    char* scratch = fresh<char>(m * row_bytes(k));
    int64_t* indices = fresh<int64_t>(3);
    char* rows = fresh<char>(3 * k * size);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    float* importance = below(2) ? fresh<float>(k) : nullptr;
    quire_w4a8_pack(weight, is_bf16, outliers, importance, n, k, packed, num_threads);
    quire_w4a8(x, is_bf16, m, packed, outliers, bias, n, k, y, scratch, num_threads);
    if (!quire_w4a8_rows(indices, 3, packed, outliers, is_bf16, n, k, rows)) abort();
    indices[2] = n;
    if (quire_w4a8_rows(indices, 3, packed, outliers, is_bf16, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, packed, scratch, indices, rows, outliers, importance};
    give_back(taken);
}

}  // namespace
