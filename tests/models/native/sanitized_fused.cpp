// Random rows over memory of the exact size: whatever is read or written beyond it, the sanitizer
// tells.
#include "fused.cpp"
//
#include "sanitized.h"

namespace {

bf16* plain(int64_t count) {
    bf16* place = (bf16*)malloc(size_t(count) * sizeof(bf16));
    for (int64_t i = 0; i < count; i++) place[i].bits = uint16_t(0x3c00 + below(1 << 10));
    return place;
}

void run_rows(int64_t rows, int64_t width, int64_t num_threads) {
    bf16 *x = plain(rows * width), *added = plain(rows * width), *weight = plain(width);
    bf16 *out = plain(rows * width), *gates = plain(2 * rows * width);
    QUIRE_JOIN(quire_norm, QUIRE_ISA)
    (x, below(2) ? added : nullptr, weight, rows, width, 1e-6, below(2), out, num_threads);
    QUIRE_JOIN(quire_gate, QUIRE_ISA)(gates, rows, width, below(2), out, num_threads);
    QUIRE_JOIN(quire_sum, QUIRE_ISA)(x, added, rows, width, out, num_threads);
    for (bf16* each : {x, added, weight, out, gates}) free(each);
}

void run_heads(int64_t rows, int64_t num_threads) {
    const int64_t rotary = 2 * (1 + below(60)), head = rotary + below(30);
    const int64_t query_heads = 1 + below(5), key_heads = 1 + below(3);
    const int64_t stride = (query_heads + key_heads) * head + below(40);
    bf16 *x = plain(rows * stride), *cosines = plain(rows * rotary), *sines = plain(rows * rotary);
    bf16 *query = plain(head), *key = plain(head);
    bool is_normed = below(2);
    QUIRE_JOIN(quire_rope, QUIRE_ISA)
    (x, rows, stride, query_heads, key_heads, head, cosines, sines, rotary,
     is_normed ? query : nullptr, is_normed ? key : nullptr, 1e-6, 1e-6, below(2), num_threads);
    for (bf16* each : {x, cosines, sines, query, key}) free(each);
}

void run_one() {
    const int64_t rows = 1 + below(60), num_threads = 1 + below(4);
    run_rows(rows, 1 + below(300), num_threads);
    run_heads(rows, num_threads);
}

}  // namespace
