// compressed bf16: y[M, N] = x[M, K] W[N, K]^T + bias in bfloat16, summed in floats, over weights packed
// once, in 12 bits each, as compressed_bf16.h has them. A row's sums run in the same order however
// many rows there are.
//
// Where x has few rows, memory is all that matters: each thread reads panel after panel of a range
// of its own, one stream, decodes what it multiplies, and helps with another's only at the end.
//
// Compiled once for each instruction set, QUIRE_ISA naming it: where there are tiles they multiply,
// else bfloat16 dot products do; sets without those export nothing.

#if defined(__AVX512BF16__)

#include "linear/compress_bf16.h"
#include "common/ranges.h"
#if QUIRE_HAS_TILES
#include "linear/tile_linear.h"
#else
#include "linear/dot_linear.h"
#endif

namespace {

// Of y.
int64_t count_panels(const LinearProduct& product) { return ratio_up(product.width(), PANEL); }

void put_panel(const LinearProduct& product, const PanelProduct& panels, int64_t i) {
    uint16_t* y = product.y + i * PANEL;
#if QUIRE_HAS_TILES
    if (product.num_couples) {
        const Couple couple = {i, i + product.num_couples, product.act};
        return panels.put(couple, y, product.width());
    }
#endif
    panels.put(i, y, product.width());
}

// A range of panels for each thread.
struct Few {
    const LinearProduct& product;
    Ranges ranges;
};

void do_few(void* argument) {
    Few& few = *(Few*)argument;
    const LinearProduct& product = few.product;
    const PanelProduct panels(product.weights, product.x, product.num_rows);
    do_share(few.ranges, count_panels(product),
             [&](int64_t panel) { put_panel(product, panels, panel); });
}

// Up to MAX_PANEL_ROWS rows of x.
void multiply_few(const LinearProduct& product, int64_t num_threads) {
    const int64_t most = smaller(num_threads, MAX_RANGES);
    Few few{product, Ranges(smaller(most, count_panels(product)))};
    in_parallel(few.ranges.count, do_few, &few);
}

void multiply(const LinearProduct& product, int64_t num_threads) {
    const bool is_few = product.num_rows <= MAX_PANEL_ROWS;
    is_few ? multiply_few(product, num_threads) : multiply_many(product, num_threads);
}

}  // namespace

extern "C" int64_t quire_compressed_bf16_heads(const uint16_t* weight, int64_t n, int64_t k,
                                               void* heads, int64_t num_threads) {
    Packing packing = {weight, (uint8_t*)heads, n, k, true, 0};
    in_parallel(num_threads, pack_panels, &packing);
    return packing.place_streams();
}

extern "C" void quire_compressed_bf16_pack(const uint16_t* weight, int64_t n, int64_t k,
                                           void* packed, int64_t num_threads) {
    Packing packing = {weight, (uint8_t*)packed, n, k, false, 0};
    in_parallel(num_threads, pack_panels, &packing);
}

extern "C" void quire_compressed_bf16(const uint16_t* x, int64_t m, const void* packed,
                                      const uint16_t* bias, int64_t n, int64_t k, uint16_t* y,
                                      void* scratch, int64_t num_threads) {
    if (m == 0 || n == 0) return;
    multiply({{(const uint8_t*)packed, bias, n, k}, x, y, m, scratch}, num_threads);
}

extern "C" int64_t quire_compressed_bf16_scratch(int64_t m, int64_t k) {
#if QUIRE_HAS_TILES
    return arranged_bytes(m, k);
#else
    return 0;
#endif
}

#if QUIRE_HAS_TILES
extern "C" bool quire_compressed_bf16_mlp(const uint16_t* x, int64_t m, const void* packed,
                                          const uint16_t* bias, int64_t n, int64_t k, int64_t act,
                                          const void* down, const uint16_t* down_bias,
                                          int64_t width, uint16_t* gated, uint16_t* y,
                                          void* scratch, int64_t num_threads) {
    if (n % (2 * PANEL)) return false;
    if (m == 0 || n == 0 || width == 0) return true;
    const LinearProduct gates = {{(const uint8_t*)packed, bias, n, k}, x, gated, m, scratch,
                                 n / (2 * PANEL), act};
    const LinearProduct rest = {{(const uint8_t*)down, down_bias, width, n / 2}, gated, y, m};
    if (m > MAX_PANEL_ROWS) {
        multiply_many(gates, rest, num_threads);
    } else {
        multiply_few(gates, num_threads);
        multiply_few(rest, num_threads);
    }
    return true;
}
#endif

extern "C" bool quire_compressed_bf16_rows(const int64_t* indices, int64_t count,
                                           const void* packed, int64_t n, int64_t k, uint16_t* y) {
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= n) return false;
        const Cursor panel((const uint8_t*)packed, indices[i] / PANEL, 0);
        copy_row(panel, indices[i] % PANEL, k, y + i * k);
    }
    return true;
}

#endif
