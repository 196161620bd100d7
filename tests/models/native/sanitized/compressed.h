// A weight packed in 12 bits by one thread.
#pragma once

#include "linear/compress_bf16.h"
#include "sanitized.h"

namespace {

inline uint8_t* coded(const uint16_t* weight, int64_t n, int64_t k) {
    const int64_t head_bytes = ratio_up(n, PANEL) * LINE;
    uint8_t* heads = fresh<uint8_t>(head_bytes);
    Packing first = {weight, heads, n, k, true, 0};
    pack_panels(&first);
    uint8_t* packed = fresh<uint8_t>(first.place_streams());
    memcpy(packed, heads, size_t(head_bytes));
    Packing second = {weight, packed, n, k, false, 0};
    pack_panels(&second);
    free(heads);
    return packed;
}

}  // namespace
