"""torchao: integers or floats of few bits with a scale for each block, as its tensors lie in
safetensors since it flattens them. The names of these parts begin with `_weight_`.

    qdata        [N, K] int8 or float8, or [N, K / 2] uint8: two signed integers of 4 bits, the
                 first in the low bits
    scale        [N, G], [1, 1] or blocks of rows and columns; for uint8 [G, N]
    zero_point   likewise, of whole numbers: W = (qdata - zero_point) x scale; for uint8 of
                 floats: W = qdata x scale + zero_point

Scales of activations are not used: these stay floats.

Source: `torchao/quantization/quantize_/workflows` of https://github.com/pytorch/ao
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.loading.published.gptq import HALVES
from quire.models.loading.published.packed_bits import unpacked_bits
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.settings import (
    Settings,
    refuse_flat,
    refuse_others,
    refuse_shape,
    shapes_of,
)
from quire.models.weights.grouped_weight import GroupedWeight

PART = re.compile(r"(.+)\._weight_(\w+)")
UNUSED = ("act_quant_scale", "act_quant_zero_point")
FLOAT8 = ("F8_E4M3", "F8_E5M2")
WHOLE = ("I8", "I16", "I32", "I64")
PACKED, SIGNED = "U8", "I8"


SIGNED_BITS = 5
"""Bits of numbers from -8 on that have offsets: with those, numbers of four bits begin at 0."""


@dataclass(frozen=True, slots=True)
class TorchAoFormat:
    """The kind follows from the parts of each weight."""

    def place(self, name: str) -> WeightPart | None:
        found = PART.fullmatch(name)
        return WeightPart(f"{found[1]}.weight", found[2]) if found is not None else None

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        stored = parts["qdata"].dtype if "qdata" in parts else ""
        is_packed = stored == PACKED
        dtypes = {"qdata": (PACKED, SIGNED, *FLOAT8), "scale": HALVES}
        if is_packed or (stored == SIGNED and "zero_point" in parts):
            dtypes["zero_point"] = HALVES if is_packed else WHOLE
        shapes = shapes_of(parts, dtypes)
        refuse_others(parts, (*dtypes, *UNUSED))
        refuse_flat(shapes, "qdata")
        if is_packed:
            found = _packed_shape(shapes)
        else:
            found = shapes["qdata"]
            _refuse_uneven(found, shapes["scale"])
        if "zero_point" in shapes:
            refuse_shape("zero_point", shapes["zero_point"], shapes["scale"])
        return found

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        qdata, scale = parts["qdata"], parts["scale"].float()
        if qdata.dtype == torch.uint8:
            numbers = (unpacked_bits(qdata, 4).to(torch.int8) ^ 8) - 8
            zeros = _turned(parts["zero_point"].float())
            return GroupedWeight(numbers, _turned(scale), zeros, SIGNED_BITS)
        scales = _of_rows(scale, len(qdata))
        numbers = _less_zeros(qdata, parts.get("zero_point"))
        if numbers.dtype == torch.int8:
            return GroupedWeight(numbers, scales, None, 8)
        groups = numbers.float().view(*scales.shape, -1)
        return (groups * scales[..., None]).view(qdata.shape)


def torchao_format(settings: Settings) -> TorchAoFormat:
    """Return the format, whatever the settings: the parts of the weights say the same."""
    return TorchAoFormat()


def _packed_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    num_rows, num_columns = shapes["qdata"][0], shapes["qdata"][1] * 2
    refuse_flat(shapes, "scale")
    num_groups = shapes["scale"][0]
    refuse_shape("scale", shapes["scale"], (num_groups, num_rows))
    if not num_groups or num_columns % num_groups:
        raise UnsupportedFormat(f"its {num_columns} columns are not {num_groups} groups")
    group_size = num_columns // num_groups
    if num_groups > 1 and group_size & group_size - 1:  # the last one may be shorter
        raise UnsupportedFormat(f"its groups are {group_size} columns, must be a power of two")
    return num_rows, num_columns


def _refuse_uneven(qdata: tuple[int, ...], scale: tuple[int, ...]) -> None:
    """Raise UnsupportedFormat where scales are not for blocks of one size that make up the
    matrix."""
    if scale in ((), (1,)):
        return
    blocks_fit = len(scale) == 2 and all(scale) and qdata[0] % scale[0] == qdata[1] % scale[1] == 0
    if not blocks_fit:
        raise UnsupportedFormat(f"its scale is {list(scale)}, must be blocks of {list(qdata)}")


def _turned(scale: Tensor) -> Tensor:
    return scale.T.contiguous()


def _of_rows(scale: Tensor, num_rows: int) -> Tensor:
    """Return the scales of a matrix, or of its blocks, for each of its rows: [N, G]."""
    blocks = scale if scale.dim() == 2 else scale.view(1, 1)
    return blocks.repeat_interleave(num_rows // len(blocks), 0)


def _less_zeros(qdata: Tensor, zero_point: Tensor | None) -> Tensor:
    """Return the integers minus their zero points: int8 if all fit, otherwise int16."""
    if zero_point is None or not bool(zero_point.any()):
        return qdata
    zeros = _of_rows(zero_point.to(torch.int16), len(qdata))[..., None]
    numbers = qdata.to(torch.int16).view(*zeros.shape[:2], -1) - zeros
    narrow = numbers.to(torch.int8)
    fits = torch.equal(narrow.to(torch.int16), numbers)
    return (narrow if fits else numbers).view(qdata.shape)
