"""compressed-tensors, the format of vLLM's LLM Compressor: weights of few bits whose parts tell
what they are.

    weight_packed         [N, K x bits / 32] int32: words of integers, each plus half their range
    weight                [N, K] int8 or float8
    weight_scale          one number, [N, 1], [N, G], or blocks of rows and columns
    weight_zero_point     [N x bits / 32, G] int32 where weights are packed, else [N, G] int8
    weight_g_idx          [K] int32: the group of each column, where they were put in an order

W = (weight - weight_zero_point) x weight_scale. Floats of 4 bits:

    weight_packed         [N, K / 2] uint8: nibbles, the lower first
    weight_scale          NVFP4: [N, K / 16] float8; MXFP4: [N, K / 32] uint8, exponents plus 127
    weight_global_scale   NVFP4: one number, which scales are divided by

Activations, keys and values are not quantised.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from quire.models.loading.published.fp4 import fp4_shape, fp4_weight, of_matrices
from quire.models.loading.published.module_parts import module_place
from quire.models.loading.published.packed_integers import (
    packed_shape,
    packed_weight,
    plain_shape,
    plain_weight,
)
from quire.models.loading.published.place import as_object
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.scaled_floats import (
    FLOATS8,
    Block,
    exponents_as_floats,
    scaled_shape,
    scaled_values,
)
from quire.models.loading.published.settings import Settings, refuse_other, sizes_of_block, whole
from quire.models.weights.grouped_weight import GroupedWeight

FORMATS = (
    *("dense", "float-quantized", "int-quantized", "mixed-precision", "mxfp4-pack-quantized"),
    *("mxfp8-quantized", "naive-quantized", "nvfp4-pack-quantized", "pack-quantized"),
)
PACKED = "weight_packed"
BITS_READ = (2, 4, 8)
PATTERN = "re:"
PARTS: Mapping[str, str] = MappingProxyType(
    {
        name: name
        for name in (
            *("weight", PACKED, "weight_scale", "weight_zero_point", "weight_g_idx"),
            "weight_global_scale",
        )
    }
)


@dataclass(frozen=True, slots=True)
class Targets:
    """The layers that a group of settings is of, and the bits of their weights. A target is the
    name of a layer, a pattern of names after `re:`, or a class of layers."""

    targets: tuple[str, ...]
    num_bits: int

    def names(self, module: str) -> bool:
        """Return whether a layer is meant by its name."""
        return module in self.targets or any(
            re.match(target.removeprefix(PATTERN), module)
            for target in self.targets
            if target.startswith(PATTERN)
        )

    @property
    def has_class(self) -> bool:
        """Return whether layers may be meant by their class."""
        return any("." not in target and ":" not in target for target in self.targets)


@dataclass(frozen=True, slots=True)
class CompressedFormat:
    """`groups` tell the bits of packed integers; `block` is that of floats in blocks."""

    groups: tuple[Targets, ...]
    block: Block | None

    def place(self, name: str) -> WeightPart | None:
        return module_place(name, PARTS)

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        if PACKED not in parts:
            if "weight" in parts and parts["weight"].dtype in FLOATS8:
                return scaled_shape(parts, self.block)
            return plain_shape(parts)
        if parts[PACKED].dtype == "U8":
            return fp4_shape(parts, PACKED, "weight_global_scale")
        return packed_shape(parts, self._num_bits(weight))

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        if PACKED not in parts:
            is_float = parts["weight"].is_floating_point()
            return scaled_values(parts, self.block) if is_float else plain_weight(parts)
        if parts[PACKED].dtype == torch.uint8:
            return _fp4_weight(parts)
        return packed_weight(parts, self._num_bits(weight))

    def _num_bits(self, weight: str) -> int:
        module = weight.removesuffix(".weight")
        named = [group for group in self.groups if group.names(module)]
        by_class = [group for group in self.groups if group.has_class]
        return next(iter((*named, *by_class, *self.groups))).num_bits


def compressed_format(settings: Settings) -> CompressedFormat:
    """Return the format by a checkpoint's settings. Raises UnsupportedFormat."""
    refuse_other(settings, "format", FORMATS)
    sparsity = as_object(settings.get("sparsity_config"))
    if sparsity.get("format") not in (None, "dense"):
        raise UnsupportedFormat(
            f"whose sparsity_config.format is {sparsity['format']!r}, must be 'dense'"
        )
    for name in ("transform_config", "moe_sparsity_config"):
        if settings.get(name):
            raise UnsupportedFormat(f"with a {name}")
    schemes = list(_schemes(settings))
    blocks = {
        sizes_of_block("block_structure", weights["block_structure"])
        for _, weights in schemes
        if weights.get("block_structure") is not None
    }
    if len(blocks) > 1:
        raise UnsupportedFormat("whose groups have blocks of several sizes")
    groups = [
        Targets(targets, whole(weights, "num_bits"))
        for targets, weights in schemes
        if weights.get("type", "int") == "int"
    ]
    return CompressedFormat((*groups, Targets((), 4)), next(iter(blocks), None))


def _schemes(settings: Settings) -> Iterator[tuple[tuple[str, ...], Settings]]:
    """Yield the targets of each group, and the settings of its weights. Raises
    UnsupportedFormat."""
    groups = as_object(settings.get("config_groups"))
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise UnsupportedFormat(f"whose config_groups.{name} is no object")
        refuse_other(group, "format", FORMATS)
        weights = group.get("weights")
        if not isinstance(weights, dict):
            continue
        if weights.get("type", "int") == "int":
            refuse_other(weights, "num_bits", BITS_READ)
        yield _targets(name, group.get("targets")), weights


def _targets(name: str, stated: object) -> tuple[str, ...]:
    targets = tuple(str(target) for target in stated) if isinstance(stated, list) else ()
    for target in targets:
        try:
            re.compile(target.removeprefix(PATTERN))
        except re.error as error:
            told = f"config_groups.{name}.targets holds {target!r}: {error}"
            raise UnsupportedFormat(f"whose {told}") from error
    return targets


def _fp4_weight(parts: Parts) -> GroupedWeight:
    scales = exponents_as_floats(parts["weight_scale"])
    divisor = parts.get("weight_global_scale")
    if divisor is not None:
        scales = scales / of_matrices(divisor, scales)
    return fp4_weight(parts[PACKED], scales)
