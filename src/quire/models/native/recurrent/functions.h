// The functions of gates, in floats.
#pragma once

#include "recurrent/numbers.h"

namespace {

// 1 / (1 + exp(-x)).
inline floats sigmoid(floats x) {
    return 1.0f / (exponential(most(splat(-87), x) * -1.0f) + 1.0f);
}

// log(1 + u) for u from 0 to 1, by Cephes' logf: log(1 + z), where 1 + z is 1 + u or half of it.
inline floats logarithm_beyond_one(floats u) {
    const ints is_halved = u > 0.41421356f;
    const floats z = choose(is_halved, u * 0.5f - 0.5f, u), square = z * z;
    floats y = splat(7.0376836292e-2f);
    for (float factor : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                         -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
        y = multiply_add(y, z, splat(factor));
    y = multiply_add(y * z, square, square * -0.5f);
    return z + y + choose(is_halved, splat(0.693147181f), floats{});
}

// log(1 + exp(x)).
inline floats softplus(floats x) {
    const floats size = (floats)((ints)x & 0x7fffffff);
    return most(floats{}, x) + logarithm_beyond_one(exponential(size * -1.0f));
}

}  // namespace
