// Outliers for the drivers of the kernels that have them.
#pragma once

#include "sanitized.h"

namespace {

// The first columns, and a bit for each of the others.
int32_t* fresh_outliers(int64_t k) {
    int32_t* out = fresh<int32_t>(OUTLIERS + ratio_up(k, 32));
    for (int64_t i = 0; i < ratio_up(k, 32); i++) out[OUTLIERS + i] = i ? -1 : int32_t(0xffff0000u);
    for (int64_t i = 0; i < OUTLIERS; i++) out[i] = int32_t(i);
    return out;
}

}  // namespace
