// Random candidate panels, over memory of the exact size: whatever is read or written beyond
// it, the sanitizer tells.
#include "linear/candidate_product.cpp"
//
#include "compressed.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600};
    const int64_t m = 1 + below(below(2) ? 8 : 150), n = 1 + below(below(2) ? 200 : 3000);
    const int64_t k = WIDTHS[below(7)], num_threads = 1 + below(4);
    uint16_t* x = fresh<uint16_t>(m * k);
    uint16_t* weight = fresh<uint16_t>(n * k);
    uint8_t* packed = coded(weight, n, k);
    const int64_t num_panels = ratio_up(n, PANEL), rare = 1 + below(40);
    uint64_t* candidates = fresh<uint64_t>(ratio_up(m, MASK_ROWS) * num_panels);
    memset(candidates, 0, size_t(ratio_up(m, MASK_ROWS) * num_panels) * 8);
    for (int64_t i = 0; i < m * num_panels / rare; i++) {
        const int64_t row = below(m);
        candidates[row / MASK_ROWS * num_panels + below(num_panels)] |= uint64_t(1) << row % MASK_ROWS;
    }
    uint16_t* y = fresh<uint16_t>(m * n);
    char* scratch = fresh<char>(quire_candidate_product_scratch(k, num_threads));
    CandidateProduct call = {x, packed, candidates, y, scratch, m, n, k, num_threads};
    quire_candidate_product(&call);
    const void* taken[] = {x, weight, packed, candidates, y, scratch};
    give_back(taken);
}

}  // namespace
