// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include "linear.cpp"
//
#include "sanitized.h"

namespace {

bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

// Fused or not, the same bits, but for those of a NaN.
void check_gated(const uint16_t* x, int64_t m, const void* packed, const uint16_t* bias, int64_t n,
                 int64_t k, const uint16_t* y, int64_t num_threads) {
#if QUIRE_HAS_TILES
    const int64_t width = n / 2, act = below(2);
    uint16_t* out = fresh<uint16_t>(m * width);
    const bool is_done = QUIRE_JOIN(quire_linear_gated, QUIRE_ISA)(x, m, packed, bias, n, k, act,
                                                                   out, num_threads);
    if (is_done != (n % (2 * PANEL) == 0)) abort();
    for (int64_t row = 0; is_done && row < m; row++)
        for (int64_t at = 0; at < width; at += LANES) {
            const auto take = [&](int64_t from) {
                __m256i halves = _mm256_loadu_si256((const __m256i*)(y + row * n + from + at));
                return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
            };
            uint16_t apart[LANES];
            _mm256_storeu_si256((__m256i*)apart, round_off(gated<bf16>(act, take(0), take(width))));
            const uint16_t* fused = out + row * width + at;
            for (int64_t i = 0; i < LANES; i++)
                if (apart[i] != fused[i] && !(is_nan(apart[i]) && is_nan(fused[i]))) abort();
        }
    free(out);
#endif
}

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600, 1100, 1184, 2048};
    const int64_t m = 1 + below(below(2) ? 8 : below(9) ? 90 : 600), n = below(2) ? 1 + below(300) : 64 * (1 + below(9)), k = WIDTHS[below(10)];
    const int64_t num_threads = 1 + below(4);
    uint16_t* x = fresh<uint16_t>(m * k);
    uint16_t* weight = fresh<uint16_t>(n * k);
    uint16_t* bias = below(2) ? fresh<uint16_t>(n) : nullptr;
    uint16_t* y = fresh<uint16_t>(m * n);
    // Of some weights nearly all have a code, of others few.
    const int64_t num_high_bytes = 1 + below(20), rare = 1 + below(2000);
    for (int64_t i = 0; i < n * k; i++)
        weight[i] = uint16_t((below(rare) ? below(num_high_bytes) : below(256)) << 8 | below(256));
    const int64_t head_bytes = ratio_up(n, PANEL) * LINE;
    uint8_t* heads = fresh<uint8_t>(head_bytes);
    const int64_t num_bytes =
        QUIRE_JOIN(quire_linear_heads, QUIRE_ISA)(weight, n, k, heads, num_threads);
    uint8_t* packed = fresh<uint8_t>(num_bytes);
    memcpy(packed, heads, size_t(head_bytes));
    int64_t* indices = fresh<int64_t>(3);
    uint16_t* rows = fresh<uint16_t>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    QUIRE_JOIN(quire_linear_pack, QUIRE_ISA)(weight, n, k, packed, num_threads);
    QUIRE_JOIN(quire_linear, QUIRE_ISA)(x, m, packed, bias, n, k, y, num_threads);
    if (!QUIRE_JOIN(quire_linear_rows, QUIRE_ISA)(indices, 3, packed, n, k, rows)) abort();
    check_gated(x, m, packed, bias, n, k, y, num_threads);
    for (int64_t i = 0; i < 3; i++)
        if (memcmp(rows + i * k, weight + indices[i] * k, size_t(k) * 2)) abort();
    indices[2] = n;
    if (QUIRE_JOIN(quire_linear_rows, QUIRE_ISA)(indices, 3, packed, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, heads, packed, indices, rows};
    give_back(taken);
}

}  // namespace
