"""Bounds what rounding does to the results of modules; checks at load derive their bounds from it.

The result of a module is rounded to its dtype, which changes a number by at most the unit roundoff
u, relative (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 2.1). A float32
result also carries the roundings of its sums: sqrt(n) u for a sum of n terms whose roundings go
either way (Higham and Mary, SIAM Journal on Scientific Computing 41-5, 2019).
"""

from collections.abc import Mapping

import torch

MAX_TERMS = 2**16
"""The terms of the longest sum: wider than the hidden size and MLP of any served family."""
RESULT_ROUNDING: Mapping[torch.dtype, float] = {
    torch.float32: 2.0**-24 * MAX_TERMS**0.5,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""The relative rounding of a module's result, by dtype."""
BYTE_ROUNDING = 2.0**-8
"""The rounding of activations to int8: half a step, in parts of the largest number of a row."""
PART_ROUNDINGS = 5.0
"""The distance of two correct computations of one part, root mean square, in roundings.

A part of a decoder layer rounds at most eight times in a row. Each rounding is spread evenly within
u, which has the root mean square u / sqrt(3); eight of them, in both computations, come to
sqrt(8 * 2 / 3) = 2.3 u. Cancellation, as in a rotation, may double that.
"""


def part_tolerance(dtype: torch.dtype, *, is_exact: bool) -> float:
    """Return the largest distance of two correct computations of one part of a decoder, as a share
    of the root mean square of its result. `is_exact` is false over weights that are multiplied in
    int8."""
    rounding = RESULT_ROUNDING[dtype]
    return PART_ROUNDINGS * (rounding if is_exact else max(rounding, BYTE_ROUNDING))
