// Random products over memory of the exact size: whatever is read or written beyond it, the sanitizer
// tells.
#include "linear/find_candidates.cpp"
//
#include "compressed.h"

namespace {

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600};
    const int64_t m = 1 + below(below(2) ? 8 : 90), n = 1 + below(below(2) ? 200 : 3000);
    const int64_t k = WIDTHS[below(7)], num_threads = 1 + below(4);
    bf16* x = fresh<bf16>(m * k);
    uint16_t* weight = fresh<uint16_t>(n * k);
    if (below(2)) memset(weight, 0, size_t(n * k) * 2);  // all are the largest
    uint8_t* from = coded(weight, n, k);
    uint8_t* packed = fresh<uint8_t>(ratio_up(n, LANES) * (ratio_up(k, QUAD) + 1) * LINE);
    Bounds* bounds = fresh<Bounds>(ratio_up(n, LANES));
    char* room = fresh<char>(quire_candidates_pack_scratch(k, num_threads));
    uint64_t* candidates = fresh<uint64_t>(ratio_up(m, MASK_ROWS) * ratio_up(n, PANEL));
    quire_candidates_pack(from, n, k, packed, bounds, room, num_threads);
    FindCandidates call = {x, packed, bounds, candidates, nullptr, m, n, k, num_threads};
    call.scratch = fresh<char>(quire_find_candidates_scratch(&call));
    if (quire_find_candidates(&call) < m) abort();
    const void* taken[] = {x, weight, from, packed, bounds, room, candidates, call.scratch};
    give_back(taken);
}

}  // namespace
