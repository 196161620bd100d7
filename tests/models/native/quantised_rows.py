"""Rows of numbers as the kernels of quantised weights see them: bytes, a scale for each group."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.models.rounding import summed, unit
from tests.rounding import compounded

GROUP = 256
LEAST = 2.0**-100
"""Rows of less than this are zeros."""
HALF_STEP = 0.5 + 127 * compounded(4, unit(torch.float32))
"""A number may be 127 steps large: what it is of them, and what they are, is rounded four times."""

EDGES = (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 65)
WIDTHS = st.one_of(st.integers(1, 200), st.sampled_from((*EDGES, 255, 256, 257, 511, 513, 896)))
COUNTS = st.one_of(st.integers(1, 40), st.sampled_from((64, 97, 200)))
SHAPES = st.tuples(COUNTS, WIDTHS, WIDTHS)
"""Rows, columns and depth of a product: m, n and k."""
DTYPES = st.sampled_from((torch.bfloat16, torch.float32))
EXPONENTS = st.sampled_from((-30, -12, 0, 12))


class Bytes(NamedTuple):
    """Numbers are about `scales` times `numbers`."""

    numbers: Tensor
    scales: Tensor


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def quantised(rows: Tensor) -> Bytes:
    """By the largest of each row, in the steps of float32 that the kernel takes."""
    largest = rows.float().abs().amax(-1, keepdim=True)
    inverse = torch.where(largest < LEAST, 0.0, torch.full_like(largest, 127).div(largest))
    return Bytes((rows.float() * inverse).round().double(), (largest / 127).double())


def sums_error(x: Tensor, sizes: Tensor) -> Tensor:
    """The sum of a group of integers is exact; it becomes a float, is scaled and added to the
    others, and all is scaled and added to the bias. Sums of the least may be zero."""
    num_groups = -(-x.shape[1] // GROUP)
    return summed(num_groups + 4) * sizes + torch.finfo(torch.float32).smallest_normal * num_groups
