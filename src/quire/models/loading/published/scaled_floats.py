"""Weights in floats of 8 bits, each times the scale of the rectangle that it lies in: the whole
weight, a row, a column, a group of columns, or a block of rows and columns."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from quire.models.loading.published.published_format import PartOutline, Parts, UnsupportedFormat
from quire.models.loading.published.settings import refuse_others, shapes_of

FLOATS8 = ("F8_E4M3", "F8_E5M2")
EXPONENTS = ("F8_E8M0", "U8")
"""Powers of two, as their exponents plus 127."""
SCALES = ("F32", "BF16", "F16", *EXPONENTS)
Block = tuple[int, int]


def scaled_shape(parts: Mapping[str, PartOutline], block: Block | None) -> tuple[int, ...]:
    """Return the shape of a weight of the parts `weight` and `weight_scale`. Raises
    UnsupportedFormat.

    block: the rows and columns of a scale, where scales are of blocks. Those at the end may be
        smaller.
    """
    shapes = shapes_of(parts, {"weight": FLOATS8, "weight_scale": SCALES})
    refuse_others(parts, shapes)
    shape = shapes["weight"]
    if len(shape) < 2 or not prod(shape):
        raise UnsupportedFormat("it must be a matrix")
    _scale_sizes(shape, shapes["weight_scale"], block)
    return shape


def scaled_values(parts: Parts, block: Block | None) -> Tensor:
    """Return the weight in float32: each product is rounded once."""
    values = parts["weight"].float()
    stored = parts["weight_scale"]
    scales = exponents_as_floats(stored).view(_grid(values.shape, stored.shape))
    for dim, size in enumerate(_scale_sizes(values.shape, stored.shape, block)):
        if scales.shape[dim] not in (1, values.shape[dim]):
            wide = scales.repeat_interleave(size, dim)
            scales = wide.narrow(dim, 0, values.shape[dim])
    return values.mul_(scales)


def exponents_as_floats(scales: Tensor) -> Tensor:
    """Return scales in float32."""
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()


def _grid(shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales with as many dimensions as the weight: those of rows may lack the
    columns, and a dimension of one may follow each of a matrix."""
    if prod(scale_shape) == 1:
        return (1,) * len(shape)
    if len(scale_shape) == 2 * len(shape) and prod(scale_shape[1::2]) == 1:
        return tuple(scale_shape[::2])
    return (*scale_shape, *(1,) * (len(shape) - len(scale_shape)))


def _scale_sizes(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], block: Block | None
) -> tuple[int, ...]:
    """Return how many numbers a scale covers along each dimension of a weight. Raises
    UnsupportedFormat."""
    grid = _grid(shape, scale_shape)
    if len(grid) == len(shape) and block is not None:
        counts = tuple(-(-size // each) for size, each in zip(shape[-2:], block, strict=True))
        if grid[-2:] == counts and grid[:-2] in (shape[:-2], (1,) * len(shape[:-2])):
            return (*(1,) * len(shape[:-2]), *block)
    if len(grid) != len(shape) or any(
        not count or size % count for size, count in zip(shape, grid, strict=True)
    ):
        blocks = f", in blocks of {list(block)}" if block is not None else ""
        raise UnsupportedFormat(
            f"its weight_scale is {list(scale_shape)}, for {list(shape)}{blocks}"
        )
    return tuple(size // count for size, count in zip(shape, grid, strict=True))
