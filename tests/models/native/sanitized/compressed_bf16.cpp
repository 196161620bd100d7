// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include "linear/compressed_bf16.cpp"
//
#include "sanitized.h"

namespace {

bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

// About one, or minus one.
uint16_t tame(uint16_t bits) { return uint16_t((bits & 0x80ff) | 0x3f00); }

// What takes whole lines.
template <class T>
T* fresh_lines(int64_t num_bytes) {
    return (T*)aligned_alloc(LINE, size_t(num_bytes));
}

uint8_t* pack(const uint16_t* weight, int64_t n, int64_t k, int64_t num_threads) {
    const int64_t head_bytes = ratio_up(n, PANEL) * LINE;
    uint8_t* heads = fresh<uint8_t>(head_bytes);
    uint8_t* packed = fresh<uint8_t>(
        quire_compressed_bf16_heads(weight, n, k, heads, num_threads));
    memcpy(packed, heads, size_t(head_bytes));
    quire_compressed_bf16_pack(weight, n, k, packed, num_threads);
    free(heads);
    return packed;
}

void multiply_rows_of(const uint16_t* x, int64_t m, const void* packed, const uint16_t* bias,
                      int64_t n, int64_t k, uint16_t* y, int64_t num_threads) {
    void* scratch = fresh_lines<void>(quire_compressed_bf16_scratch(m, k));
    quire_compressed_bf16(x, m, packed, bias, n, k, y, scratch, num_threads);
    free(scratch);
}

// An MLP at once, or gates, what they let through and `down` one by one: the same bits, but for those
// of a NaN. y: the product of x by both panels.
void check_mlp(const uint16_t* x, int64_t m, const void* packed, const uint16_t* bias, int64_t n,
               int64_t k, const uint16_t* y, int64_t num_threads) {
#if QUIRE_HAS_TILES
    const int64_t width = n / 2, act = below(2), num_out = 1 + below(90);
    const uint16_t* down_bias = num_out > n ? nullptr : bias;
    uint16_t* weight = fresh<uint16_t>(num_out * width);
    for (int64_t i = 0; i < num_out * width; i++) weight[i] = tame(weight[i]);
    uint8_t* down = pack(weight, num_out, width, num_threads);
    uint16_t* gated_rows = fresh_lines<uint16_t>(round_up(m, BLOCK_ROWS) * width * 2);
    uint16_t *at_once = fresh<uint16_t>(m * num_out), *apart = fresh<uint16_t>(m * num_out);
    void* scratch = fresh_lines<void>(quire_compressed_bf16_scratch(m, k));
    const bool is_done = quire_compressed_bf16_mlp(
        x, m, packed, bias, n, k, act, down, down_bias, num_out, gated_rows, at_once, scratch,
        num_threads);
    if (is_done != (n % (2 * PANEL) == 0)) abort();
    for (int64_t row = 0; is_done && row < m; row++)
        for (int64_t at = 0; at < width; at += LANES) {
            const auto take = [&](int64_t from) {
                __m256i halves = _mm256_loadu_si256((const __m256i*)(y + row * n + from + at));
                return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
            };
            _mm256_storeu_si256((__m256i*)(gated_rows + row * width + at),
                                round_off(gated<bf16>(act, take(0), take(width))));
        }
    if (is_done) multiply_rows_of(gated_rows, m, down, down_bias, num_out, width, apart, num_threads);
    for (int64_t i = 0; is_done && i < m * num_out; i++)
        if (apart[i] != at_once[i] && !(is_nan(apart[i]) && is_nan(at_once[i]))) abort();
    const void* taken[] = {weight, down, gated_rows, at_once, apart, scratch};
    give_back(taken);
#endif
}

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600, 1100, 1184, 2048};
    const bool is_wide_mlp = below(12) == 0;  // so wide that down goes through it part by part
    const int64_t m = 1 + below(is_wide_mlp ? 90 : below(2) ? 8 : below(9) ? 90 : 600);
    const int64_t n = is_wide_mlp ? 64 * (32 + below(8)) : below(2) ? 1 + below(300) : 64 * (1 + below(9));
    const int64_t k = WIDTHS[below(is_wide_mlp ? 6 : 10)];
    const int64_t num_threads = 1 + below(4);
    uint16_t* x = fresh<uint16_t>(m * k);
    uint16_t* weight = fresh<uint16_t>(n * k);
    uint16_t* bias = below(2) ? fresh<uint16_t>(n) : nullptr;
    uint16_t* y = fresh<uint16_t>(m * n);
    // Of some weights nearly all have a code, of others few.
    const int64_t num_high_bytes = 1 + below(20), rare = 1 + below(2000);
    for (int64_t i = 0; i < n * k; i++)
        weight[i] = uint16_t((below(rare) ? below(num_high_bytes) : below(256)) << 8 | below(256));
    if (below(2)) {
        for (int64_t i = 0; i < n * k; i++) weight[i] = tame(weight[i]);
        for (int64_t i = 0; i < m * k; i++) x[i] = tame(x[i]);
        for (int64_t i = 0; bias && i < n; i++) bias[i] = tame(bias[i]);
    }
    uint8_t* packed = pack(weight, n, k, num_threads);
    int64_t* indices = fresh<int64_t>(3);
    uint16_t* rows = fresh<uint16_t>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    multiply_rows_of(x, m, packed, bias, n, k, y, num_threads);
    if (!quire_compressed_bf16_rows(indices, 3, packed, n, k, rows)) abort();
    check_mlp(x, m, packed, bias, n, k, y, num_threads);
    for (int64_t i = 0; i < 3; i++)
        if (memcmp(rows + i * k, weight + indices[i] * k, size_t(k) * 2)) abort();
    indices[2] = n;
    if (quire_compressed_bf16_rows(indices, 3, packed, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, packed, indices, rows};
    give_back(taken);
}

}  // namespace
