"""GPTQ: integers of 2, 3, 4 or 8 bits with a scale and a zero point for each group of columns, by
arXiv 2210.17323, as AutoGPTQ and GPTQModel store them. Each weight has the bits that its words
show: settings may give some weights others.

    qweight   [K x bits / 32, N] int32: words of columns that follow each other, across words
    qzeros    [G, N x bits / 32] int32: words of rows; each less one in the older layout
    scales    [G, N] float16 or bfloat16
    g_idx     [K] int32: the group of each column, where columns were put in an order

W = (qweight - qzeros) x scales, transposed. A weight whose columns were put in an order is made in
float32.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.loading.published.packed_bits import BYTE_BITS, WORD_BITS, unpacked_bits
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.settings import (
    Settings,
    refuse_other,
    refuse_shape,
    shapes_of,
)
from quire.models.weights.grouped_weight import GroupedWeight

PARTS = ("qweight", "qzeros", "scales", "g_idx")
BITS = (2, 3, 4, 8)
HALVES = ("F16", "BF16", "F32")
OLDER, NEWER = "gptq", "gptq_v2"
"""Layouts: zero points are stored less one, or as they are."""


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """`bits` are the allowed bits of a weight; `zero_shift` is added to a stored zero point."""

    bits: Collection[int]
    zero_shift: int

    def place(self, name: str) -> WeightPart | None:
        module, _, part = name.rpartition(".")
        return WeightPart(f"{module}.weight", part) if part in PARTS else None

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        dtypes = {"qweight": ("I32",), "qzeros": ("I32",), "scales": HALVES}
        if "g_idx" in parts:
            dtypes["g_idx"] = ("I32",)
        shapes = shapes_of(parts, dtypes)
        if len(shapes["qweight"]) != 2 or len(shapes["scales"]) != 2 or not shapes["scales"][0]:
            raise UnsupportedFormat("its qweight and scales must be matrices")
        num_groups, num_rows = shapes["scales"][0], shapes["qweight"][1]
        refuse_shape("scales", shapes["scales"], (num_groups, num_rows))
        num_bits = _num_bits(shapes["qzeros"], num_rows)
        if num_bits not in self.bits:
            read = ", ".join(map(str, self.bits))
            raise UnsupportedFormat(
                f"its qzeros are {num_bits or 'no whole'} bits each, must be {read}"
            )
        num_columns = shapes["qweight"][0] * WORD_BITS // num_bits
        refuse_shape("qzeros", shapes["qzeros"], (num_groups, num_rows * num_bits // WORD_BITS))
        refuse_shape("qweight", shapes["qweight"], (num_columns * num_bits // WORD_BITS, num_rows))
        if "g_idx" in shapes:
            refuse_shape("g_idx", shapes["g_idx"], (num_columns,))
        elif num_columns % num_groups:
            raise UnsupportedFormat(f"its {num_columns} columns are not {num_groups} groups")
        return num_rows, num_columns

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        num_bits = _num_bits(parts["qzeros"].shape, parts["qweight"].shape[1])
        numbers = unpacked_bits(parts["qweight"].T, num_bits)
        scales = parts["scales"].float()
        zeros = unpacked_bits(parts["qzeros"], num_bits).to(torch.int16) + self.zero_shift
        group_size = -(-numbers.shape[1] // len(scales))
        groups = parts.get("g_idx")
        if groups is not None and not are_in_order(groups, group_size):
            each = groups.long()
            return (numbers.to(torch.int16) - zeros[each].T).float() * scales[each].T
        return from_zero_points(numbers, scales.T, zeros.T, num_bits)


def gptq_format(settings: Settings) -> GptqFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    refuse_other(settings, "bits", BITS)
    refuse_other(settings, "checkpoint_format", (OLDER, NEWER))
    refuse_other(settings, "pack_dtype", ("int32",))
    is_older = settings.get("checkpoint_format") in (None, OLDER)
    return GptqFormat(BITS, 1 if is_older else 0)


def from_zero_points(
    numbers: Tensor, scales: Tensor, zeros: Tensor, num_bits: int
) -> GroupedWeight:
    """Return (numbers - zeros) x scales.

    numbers: [N, K] of uint8, each of `num_bits`.
    scales, zeros: [N, G], of float32 and of int16.
    """
    half = 1 << num_bits - 1
    scales = scales.contiguous()
    is_even = bool((zeros == half).all())
    if is_even or num_bits == BYTE_BITS:
        numbers, zeros = numbers.to(torch.int16) - half, zeros - half
    numbers = numbers.to(torch.int8)
    if is_even:
        return GroupedWeight(numbers, scales, None, num_bits)
    return GroupedWeight(numbers, scales, -zeros.float() * scales, num_bits)


def _num_bits(zeros: Sequence[int], num_rows: int) -> int:
    """Return the bits of each zero point by the shape of their words; 0 for no whole number."""
    bits, left = divmod(zeros[-1] * WORD_BITS, num_rows) if zeros and num_rows else (0, 0)
    return 0 if left else bits


def are_in_order(groups: Tensor, group_size: int) -> bool:
    """Return whether the groups [K] of columns, of int32, are those of columns that follow each
    other."""
    places = torch.arange(len(groups), dtype=groups.dtype)
    return torch.equal(groups, places // group_size)
