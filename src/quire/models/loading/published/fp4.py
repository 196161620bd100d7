"""Weights in floats of 4 bits (E2M1), two in a byte, the lower nibble first, with a scale for each
group of columns: NVFP4 and MXFP4."""

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.models.loading.published.published_format import PartOutline, UnsupportedFormat
from quire.models.loading.published.scaled_floats import EXPONENTS
from quire.models.loading.published.settings import refuse_others, refuse_shape, shapes_of
from quire.models.weights.grouped_weight import GroupedWeight

DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the number of each nibble, which is whole."""
NV_GROUP, MX_GROUP = 16, 32
TABLE_BITS = 8


def fp4_shape(parts: Mapping[str, PartOutline], packed: str, second: str) -> tuple[int, ...]:
    """Return the shape of a weight. Raises UnsupportedFormat.

    packed: the part of nibbles [..., K / 2].
    second: the part of the scale of scales, which those in E4M3 have.
    """
    scales = parts.get("weight_scale")
    is_mx = scales is not None and scales.dtype in EXPONENTS
    dtypes = {packed: ("U8",), "weight_scale": EXPONENTS if is_mx else ("F8_E4M3",)}
    shapes = shapes_of(parts, dtypes if is_mx else {**dtypes, second: ("F32",)})
    refuse_others(parts, shapes)
    shape = shapes[packed]
    group_size = MX_GROUP if is_mx else NV_GROUP
    num_columns = 2 * shape[-1] if len(shape) > 1 else 0
    if not num_columns or num_columns % group_size:
        raise UnsupportedFormat(
            f"its {packed} is {list(shape)}, must be rows of whole groups of {group_size}"
        )
    wanted = (*shape[:-1], num_columns // group_size)
    refuse_shape("weight_scale", shapes["weight_scale"], wanted)
    if not is_mx and shapes[second] not in ((), (1,), shape[:-2], (*shape[:-2], 1)):
        raise UnsupportedFormat(f"its {second} is {list(shapes[second])}, must be one number")
    return (*shape[:-1], num_columns)


def fp4_weight(nibbles: Tensor, scales: Tensor) -> GroupedWeight:
    """Return the weight.

    nibbles: [..., N, K / 2] of uint8.
    scales: [..., N, K / group_size] of float32.
    """
    pairs = torch.stack((nibbles & 15, nibbles >> 4), -1).flatten(-2)
    numbers = torch.tensor(DOUBLED, dtype=torch.int8)[pairs.int()]
    return GroupedWeight(numbers, scales / 2, None, TABLE_BITS)


def of_matrices(factor: Tensor, scales: Tensor) -> Tensor:
    """Return a number for all matrices, or one for each, so that it multiplies scales [..., N, G]
    of them."""
    matrices = scales.shape[:-2] if factor.numel() > 1 else (1,) * (scales.dim() - 2)
    return factor.float().view(*matrices, 1, 1)
