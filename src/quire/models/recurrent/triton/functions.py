"""Functions of single numbers in float32, for kernels."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), without an exponential that overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), right for small results too: log(u) / (u - 1) makes up for the
    rounding of u = 1 + small (Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1)."""
    small = tl.exp(-tl.abs(x))
    total = 1.0 + small
    is_lost = total == 1.0
    rounded = tl.where(is_lost, 1.0, total - 1.0)
    of_small = tl.where(is_lost, small, small * (tl.log(total) / rounded))
    return tl.maximum(x, 0.0) + of_small
