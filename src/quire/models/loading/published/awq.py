"""AWQ: integers of 4 bits with a scale and a zero point for each group of columns, by arXiv
2306.00978, as AutoAWQ stores them.

    qweight   [K, N / 8] int32: words of eight rows, in the order ROWS_OF_WORD
    qzeros    [G, N / 8] int32: likewise
    scales    [G, N] float16 or bfloat16

W = (qweight - qzeros) x scales, transposed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.loading.published.gptq import HALVES, from_zero_points
from quire.models.loading.published.packed_bits import unpacked_bits
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

PARTS = ("qweight", "qzeros", "scales")
NUM_BITS = 4
PER_WORD = 8
ROWS_OF_WORD = (0, 2, 4, 6, 1, 3, 5, 7)
"""The row of eight that each field of a word is of, the lowest first."""
PLACES = torch.tensor([ROWS_OF_WORD.index(row) for row in range(PER_WORD)])


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """The only layout of it."""

    def place(self, name: str) -> WeightPart | None:
        module, _, part = name.rpartition(".")
        return WeightPart(f"{module}.weight", part) if part in PARTS else None

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        dtypes = {"qweight": ("I32",), "qzeros": ("I32",), "scales": HALVES}
        shapes = shapes_of(parts, dtypes)
        if len(shapes["qweight"]) != 2 or len(shapes["scales"]) != 2 or not shapes["scales"][0]:
            raise UnsupportedFormat("its qweight and scales must be matrices")
        num_columns, num_rows = shapes["qweight"][0], shapes["qweight"][1] * PER_WORD
        num_groups = shapes["scales"][0]
        refuse_shape("scales", shapes["scales"], (num_groups, num_rows))
        refuse_shape("qzeros", shapes["qzeros"], (num_groups, num_rows // PER_WORD))
        if num_columns % num_groups:
            raise UnsupportedFormat(f"its {num_columns} columns are not {num_groups} groups")
        return num_rows, num_columns

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight:
        numbers, zeros = _rows(parts["qweight"]), _rows(parts["qzeros"]).to(torch.int16)
        return from_zero_points(numbers.T, parts["scales"].float().T, zeros.T, NUM_BITS)


def awq_format(settings: Settings) -> AwqFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    refuse_other(settings, "bits", (NUM_BITS,))
    refuse_other(settings, "w_bit", (NUM_BITS,))
    refuse_other(settings, "version", ("gemm", "GEMM"))
    refuse_other(settings, "zero_point", (True,))
    return AwqFormat()


def _rows(words: Tensor) -> Tensor:
    """Return the numbers of words [K, N / 8] in their rows' order: [K, N] of uint8."""
    fields = unpacked_bits(words, NUM_BITS).view(len(words), -1, PER_WORD)
    return fields[..., PLACES].flatten(1)
