"""Integers of 8 bits, or of fewer in words, with scales and zero points of rows or of groups of
columns, as compressed-tensors stores them."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from quire.models.loading.published.gptq import HALVES, are_in_order, from_zero_points
from quire.models.loading.published.packed_bits import BYTE_BITS, WORD_BITS, unpacked_bits
from quire.models.loading.published.published_format import PartOutline, Parts, UnsupportedFormat
from quire.models.loading.published.settings import refuse_others, refuse_shape, shapes_of
from quire.models.weights.grouped_weight import GroupedWeight

Shape = tuple[int, ...]
PACKED, ZEROS = "weight_packed", "weight_zero_point"
UNSET = -1
"""The group of a column without a reordering."""


def packed_shape(parts: Mapping[str, PartOutline], num_bits: int) -> Shape:
    """Return the shape of a weight [..., N, K] of words [..., N, K x bits / 32]. Raises
    UnsupportedFormat."""
    dtypes = {PACKED: ("I32",), "weight_scale": HALVES}
    dtypes |= {each: ("I32",) for each in ("weight_g_idx",) if each in parts}
    shapes = shapes_of(parts, dtypes)
    refuse_others(parts, (*dtypes, ZEROS))
    words = shapes[PACKED]
    if len(words) < 2 or not prod(words):
        raise UnsupportedFormat(f"its {PACKED} must be a matrix")
    shape = (*words[:-1], words[-1] * WORD_BITS // num_bits)
    num_groups = _num_groups(shape, shapes["weight_scale"])
    if "weight_g_idx" in shapes:
        refuse_shape("weight_g_idx", shapes["weight_g_idx"], shape[-1:])
        if len(shape) != 2:
            raise UnsupportedFormat("its weight_g_idx is of a weight that is no matrix")
    zeros = parts.get(ZEROS)
    if zeros is not None and zeros.dtype == "I32":
        num_words = -(-shape[-2] * num_bits // WORD_BITS)
        refuse_shape(ZEROS, zeros.shape, (*shape[:-2], num_words, num_groups))
    else:
        _refuse_zeros(parts, shape, num_groups)
    return shape


def packed_weight(parts: Parts, num_bits: int) -> GroupedWeight | Tensor:
    """Return the weight, in float32 if columns were reordered."""
    numbers = unpacked_bits(parts[PACKED], num_bits)
    scales = _scales(parts, numbers.shape)
    half = 1 << num_bits - 1
    stored = parts.get(ZEROS)
    if stored is None:
        zeros = torch.full_like(scales, half, dtype=torch.int16)
    elif stored.dtype == torch.int32:
        rows = unpacked_bits(stored.mT, num_bits)[..., : numbers.shape[-2]]
        zeros = rows.mT.to(torch.int16)
    else:
        zeros = stored.to(torch.int16).view(_whole(stored, scales)).expand_as(scales) + half
    groups = parts.get("weight_g_idx")
    group_size = numbers.shape[-1] // scales.shape[-1]
    if groups is None or UNSET in groups or are_in_order(groups, group_size):
        return from_zero_points(numbers, scales, zeros, num_bits)
    each = groups.long()
    return (numbers.to(torch.int16) - zeros[:, each]).float() * scales[:, each]


def plain_shape(parts: Mapping[str, PartOutline]) -> Shape:
    """Return the shape of a weight [..., N, K] of int8. Raises UnsupportedFormat."""
    shapes = shapes_of(parts, {"weight": ("I8",), "weight_scale": HALVES})
    refuse_others(parts, (*shapes, ZEROS))
    shape = shapes["weight"]
    if len(shape) < 2 or not prod(shape):
        raise UnsupportedFormat("it must be a matrix")
    _refuse_zeros(parts, shape, _num_groups(shape, shapes["weight_scale"]))
    return shape


def plain_weight(parts: Parts) -> GroupedWeight:
    """Return a weight of int8."""
    numbers = parts["weight"]
    scales = _scales(parts, numbers.shape)
    stored = parts.get(ZEROS)
    offsets = None
    if stored is not None and bool(stored.any()):
        offsets = -stored.float().view(_whole(stored, scales)) * scales
    return GroupedWeight(numbers, scales, offsets, BYTE_BITS)


def _num_groups(shape: Shape, scale_shape: Shape) -> int:
    """Return the groups of a row by the shape of the scales. Raises UnsupportedFormat."""
    num_groups = scale_shape[-1] if len(scale_shape) == len(shape) else 1
    if prod(scale_shape) == 1 or scale_shape == shape[:-1]:
        return 1
    refuse_shape("weight_scale", scale_shape, (*shape[:-1], max(num_groups, 1)))
    if shape[-1] % num_groups:
        raise UnsupportedFormat(f"its {shape[-1]} columns are not {num_groups} groups")
    return num_groups


def _refuse_zeros(parts: Mapping[str, PartOutline], shape: Shape, num_groups: int) -> None:
    """Raise UnsupportedFormat for zero points in int8 that are not those of the scales."""
    if ZEROS not in parts:
        return
    found = shapes_of(parts, {ZEROS: ("I8",)})[ZEROS]
    if prod(found) != 1 and found != shape[:-1]:
        refuse_shape(ZEROS, found, (*shape[:-1], num_groups))


def _scales(parts: Parts, shape: Shape) -> Tensor:
    """Return scales [..., N, G] of float32."""
    stored = parts["weight_scale"].float()
    if stored.numel() == 1:
        return stored.expand(shape[:-1]).unsqueeze(-1).contiguous()
    return stored.view(*shape[:-1], -1).contiguous()


def _whole(stored: Tensor, scales: Tensor) -> Shape:
    """Return the shape of zero points that fits the scales' [..., N, G]."""
    if stored.numel() == 1:
        return (1,) * scales.dim()
    return (*scales.shape[:-1], -1)
