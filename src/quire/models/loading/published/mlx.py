"""MLX: numbers of few bits with a scale for each group of columns, as mlx-lm stores them.

    weight   [N, K x bits / 32] uint32: words of columns that follow each other, across words
    scales   [N, G] float16, bfloat16 or float32; for floats of few bits uint8
    biases   [N, G] likewise, for integers alone

Integers (mode `affine`): W = weight x scales + biases. Floats of 4 bits are E2M1, those of 8 E4M3;
scales are powers of two for `mxfp4` and `mxfp8` (E8M0), E4M3 for `nvfp4`: W = weight x scales.

Source: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from quire.models.loading.gguf.blocks import MXFP4_VALUES
from quire.models.loading.published.gptq import HALVES
from quire.models.loading.published.packed_bits import BYTE_BITS, WORD_BITS, unpacked_bits
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.settings import (
    Settings,
    refuse_flat,
    refuse_other,
    refuse_others,
    refuse_shape,
    shapes_of,
    whole,
)
from quire.models.weights.grouped_weight import GroupedWeight

PARTS = ("weight", "scales", "biases", "global_scale")
AFFINE = "affine"
FLOAT_SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
)
"""The columns of a group and the bits that each kind of floats has."""
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType({AFFINE: (64, 4), **FLOAT_SIZES})
"""Both of a weight whose settings have neither."""
EXPERTS = ".switch_mlp."
_FP4_HALVES = torch.tensor(MXFP4_VALUES, dtype=torch.int8)


@dataclass(frozen=True, slots=True)
class MlxSettings:
    """The settings of one weight; `mode` is the kind of its numbers."""

    mode: str
    group_size: int
    num_bits: int


@dataclass(frozen=True, slots=True)
class MlxFormat:
    """`usual` for all weights except those of the modules in `own`."""

    usual: MlxSettings
    own: Mapping[str, MlxSettings]

    def place(self, name: str) -> WeightPart | None:
        module, _, part = name.rpartition(".")
        return WeightPart(f"{module}.weight", part) if part in PARTS else None

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        if EXPERTS in weight:
            raise UnsupportedFormat("experts are read one by one, not as MLX joins them")
        mode, group_size, num_bits = self._settings(weight)
        scales = HALVES if mode == AFFINE else ("U8",)
        dtypes = {"weight": ("U32",), "scales": scales}
        if mode == AFFINE:
            dtypes["biases"] = scales
        shapes = shapes_of(parts, dtypes)
        refuse_others(parts, dtypes)
        refuse_flat(shapes, *shapes)
        num_rows, num_words = shapes["weight"]
        num_groups = num_words * WORD_BITS // (num_bits * group_size)
        for name in tuple(shapes)[1:]:
            refuse_shape(name, shapes[name], (num_rows, num_groups))
        num_columns = num_groups * group_size
        refuse_shape("weight", (num_rows, num_words), (num_rows, num_columns * num_bits // 32))
        return num_rows, num_columns

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        mode, _, num_bits = self._settings(weight)
        scales = parts["scales"]
        numbers = unpacked_bits(parts["weight"], num_bits)
        if mode == AFFINE:
            return _affine(numbers, scales.float(), parts["biases"].float(), num_bits)
        if mode == "nvfp4":
            scales = scales.view(torch.float8_e4m3fn).float()
        else:
            scales = scales.view(torch.float8_e8m0fnu).float()
        if mode == "mxfp8":
            floats = numbers.view(torch.float8_e4m3fn).float()
            return (floats.view(*scales.shape, -1) * scales[..., None]).view(numbers.shape)
        return GroupedWeight(_FP4_HALVES[numbers.long()], scales / 2, None, 8)

    def _settings(self, weight: str) -> tuple[str, int, int]:
        found = self.own.get(weight.removesuffix(".weight"), self.usual)
        return found.mode, found.group_size, found.num_bits


def mlx_format(settings: Settings) -> MlxFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    own = {name: each for name, each in settings.items() if isinstance(each, dict)}
    return MlxFormat(
        _checked(settings), MappingProxyType({name: _checked(each) for name, each in own.items()})
    )


def _checked(settings: Settings) -> MlxSettings:
    refuse_other(settings, "mode", tuple(SIZES))
    mode = str(settings.get("mode") or AFFINE)
    group_size, num_bits = SIZES[mode]
    found = MlxSettings(
        mode, whole(settings, "group_size", group_size), whole(settings, "bits", num_bits)
    )
    if mode == AFFINE:
        refuse_other(settings, "bits", (1, 2, 3, 4, 5, 6, 8))
        refuse_other(settings, "group_size", (32, 64, 128))
    elif (found.group_size, found.num_bits) != FLOAT_SIZES[mode]:
        raise UnsupportedFormat(
            f"whose {mode} has bits {found.num_bits} and group_size {found.group_size}, must have "
            f"{num_bits} and {group_size}"
        )
    return found


def _affine(numbers: Tensor, scales: Tensor, biases: Tensor, num_bits: int) -> GroupedWeight:
    """Return numbers x scales + biases. Those of eight bits are less their middle, as int8 has
    them."""
    if num_bits == BYTE_BITS:
        middle = 1 << BYTE_BITS - 1
        numbers, biases = numbers.to(torch.int16) - middle, biases + middle * scales
    return GroupedWeight(numbers.to(torch.int8), scales, biases, num_bits)
