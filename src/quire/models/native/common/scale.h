// What numbers are multiplied by to become bytes, and bytes to become numbers.
#pragma once

#include "common/common.h"

namespace {

constexpr float LARGEST = 127;
constexpr float NOTHING = 0x1p-100f;  // what is quantised is 0 where nothing is larger

struct Scale {
    float scale, inverse;
};

// By the bits of the largest absolute number: NaN, and everything 0, where that is not finite.
inline Scale scale_for(uint32_t bits) {
    float size;
    memcpy(&size, &bits, 4);
    if (bits >= 0x7f800000u) return {__builtin_nanf(""), 0};
    if (size < NOTHING) return {0, 0};
    return {size / LARGEST, LARGEST / size};
}

}  // namespace
