"""Random weights that are stored in groups."""

import torch

from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.lazy_weight import OpenedWeight

UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11}
"""Rounding of a number of each dtype, as a share of it."""
FORMS = [
    (num_bits, group_size, scale, has_offsets)
    for num_bits in (4, 8)
    for group_size, scale in ((16, torch.float32), (32, torch.float16), (96, torch.float32))
    for has_offsets in (False, True)
]


def made(
    num_rows: int,
    dtype: torch.dtype,
    form: tuple[int, int, torch.dtype, bool] = (4, 32, torch.float16, False),
    *,
    num_columns: int = 96,
) -> OpenedWeight:
    """Return random numbers of a form: bits, size of a group, dtype of scales, offsets."""
    num_bits, group_size, scale, has_offsets = form
    generator = torch.Generator().manual_seed(num_rows)
    lowest = 0 if has_offsets and num_bits == 4 else -(1 << num_bits - 1)
    shape, groups = (num_rows, num_columns), (num_rows, num_columns // group_size)
    numbers = torch.randint(lowest, lowest + (1 << num_bits), shape, generator=generator)
    scales, offsets = (torch.rand(*groups, generator=generator).to(scale) for _ in range(2))
    weight = GroupedWeight(
        numbers.to(torch.int8), scales, offsets if has_offsets else None, num_bits
    )
    return OpenedWeight(weight, dtype)
