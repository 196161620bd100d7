// Random rows over memory of the exact size: whatever is read or written beyond it, the sanitizer
// tells.
#include "decoder/fused.cpp"
//
#include "sanitized.h"

namespace {

// Of either dtype, whatever that then means.
char* plain(int64_t count) {
    char* place = fresh<char>(count);
    for (int64_t i = 1; i < count; i += 2) place[i] = 0x3c;
    return place;
}

void run_rows(bool is_bf16, int64_t rows, int64_t width, int64_t num_threads) {
    const int64_t size = is_bf16 ? 2 : 4;
    char *x = plain(rows * width * size), *added = plain(rows * width * size);
    char *weight = plain(width * size), *out = plain(rows * width * size);
    char* gates = plain(2 * rows * width * size);
    quire_norm(is_bf16, x, below(2) ? added : nullptr, weight, rows, width, 1e-6, below(2), out,
               num_threads);
    quire_gate(is_bf16, gates, rows, width, below(2), out, num_threads);
    quire_sum(is_bf16, x, added, rows, width, out, num_threads);
    quire_product(is_bf16, gates, 2 * width, added, width, rows, width, out, num_threads);
    const void* taken[] = {x, added, weight, out, gates};
    give_back(taken);
}

void run_heads(bool is_bf16, int64_t rows, int64_t num_threads) {
    const int64_t rotary = 2 * (1 + below(60)), head = rotary + below(30);
    const int64_t query_heads = 1 + below(5), key_heads = 1 + below(3), size = is_bf16 ? 2 : 4;
    const int64_t query_stride = head * (1 + below(2));
    const int64_t stride = query_heads * query_stride + key_heads * head + below(40);
    char *x = plain(rows * stride * size), *cos = plain(rows * rotary * size);
    char *attended = plain(rows * query_heads * head * size);
    char *sin = plain(rows * rotary * size), *query = plain(head * size), *key = plain(head * size);
    bool is_normed = below(2);
    quire_rope(is_bf16, x, rows, stride, query_heads, query_stride, key_heads, head, cos, sin, rotary,
               is_normed ? query : nullptr, is_normed ? key : nullptr, 1e-6, 1e-6, below(2),
               num_threads);
    if (query_stride > head)
        quire_gate_heads(is_bf16, attended, x + head * size, rows, query_heads, head, stride,
                         query_stride, num_threads);
    const void* taken[] = {x, cos, sin, query, key, attended};
    give_back(taken);
}

void run_one() {
    const int64_t rows = 1 + below(60), num_threads = 1 + below(4);
    const bool is_bf16 = quire_fused_takes(true) && below(2);
    run_rows(is_bf16, rows, 1 + below(300), num_threads);
    run_heads(is_bf16, rows, num_threads);
}

}  // namespace
