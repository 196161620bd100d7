"""MXFP4 as gpt-oss stores its experts: floats of 4 bits with a power of two for each 32 columns, by
the OCP Microscaling Formats specification.

    gate_up_proj_blocks     [E, N, K / 32, 16] uint8: the nibbles of a group, the lower first
    gate_up_proj_scales     [E, N, K / 32] uint8: an exponent plus 127

The weight is [E, K, N]: transformers multiplies rows by it. It is made in float32.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from quire.models.loading.published.fp4 import MX_GROUP, fp4_weight
from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.scaled_floats import exponents_as_floats
from quire.models.loading.published.settings import Settings, refuse_shape, shapes_of

BLOCK_BYTES = MX_GROUP // 2
_PARTS = re.compile(r"(.+)_(blocks|scales)")


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """The only layout of it."""

    def place(self, name: str) -> WeightPart | None:
        found = _PARTS.fullmatch(name)
        return None if found is None else WeightPart(found[1], found[2])

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        shapes = shapes_of(parts, {"blocks": ("U8",), "scales": ("U8",)})
        blocks = shapes["blocks"]
        if len(blocks) != 4 or blocks[-1] != BLOCK_BYTES or not prod(blocks):
            raise UnsupportedFormat(
                f"its blocks are {list(blocks)}, must be of {BLOCK_BYTES} bytes each"
            )
        refuse_shape("scales", shapes["scales"], blocks[:-1])
        num_experts, num_rows, num_groups, _ = blocks
        return num_experts, num_groups * MX_GROUP, num_rows

    def unpacked(self, weight: str, parts: Parts) -> Tensor:
        blocks, scales = parts["blocks"], parts["scales"]
        num_experts, num_rows, num_groups, _ = blocks.shape
        made = torch.empty(num_experts, num_groups * MX_GROUP, num_rows)
        for expert, each, scale in zip(made, blocks, scales, strict=True):
            widened = fp4_weight(each.flatten(-2), exponents_as_floats(scale))
            expert.copy_(widened.values().T)
        return made


def mxfp4_format(settings: Settings) -> Mxfp4Format:
    """Return the format; no setting changes it."""
    return Mxfp4Format()
