"""bitsandbytes: 4 bits that look up a table, with a scale for each block of numbers, by arXiv
2305.14314; or int8 with a scale for each row, by arXiv 2208.07339.

Of 4 bits, with M = N x K numbers, row after row:

    weight                 [M / 2, 1] uint8, or as many bytes of floats: the first number of two is
                           in the high bits
    weight.absmax          [M / blocksize] float32, or uint8 where scales are quantised too
    weight.quant_map       [16] float32: the table
    weight.nested_absmax, weight.nested_quant_map   [M / blocksize / nested_blocksize], [256]
                           float32: scales and the table of the scales
    weight.quant_state.bitsandbytes__nf4 (or __fp4)   JSON: shape, blocksize, nested_offset, ...

Of int8:

    weight   [N, K] int8;   SCB   [N] float32: W = weight x SCB / 127
    weight_format   [] uint8: 0 for rows one after the other

Features of activations that the library computes in 16 bits need no care: all of them are floats.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.loading.published.published_format import (
    PartOutline,
    Parts,
    UnsupportedFormat,
    WeightPart,
)
from quire.models.loading.published.settings import (
    Settings,
    refuse_others,
    refuse_shape,
    shapes_of,
    whole,
)
from quire.models.weights.grouped_weight import GroupedWeight

STATE = "quant_state.bitsandbytes__"
FOUR_BITS = re.compile(
    r"(.+\.weight)\.((?:nested_)?(?:absmax|quant_map)|quant_state\.bitsandbytes__(?:nf4|fp4))"
)
INT8_PARTS = ("weight", "SCB", "weight_format")
BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}
NUM_LEVELS, NUM_NESTED_LEVELS = 16, 256
MAX_BLOCK = 2**16
LARGEST = 127.0


class QuantState(NamedTuple):
    """The JSON beside a weight of 4 bits; `nested_block` is 0 if scales are floats."""

    shape: tuple[int, int]
    block: int
    nested_block: int
    nested_offset: float

    @property
    def num_elements(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def num_blocks(self) -> int:
        return -(-self.num_elements // self.block)


@dataclass(frozen=True, slots=True)
class BitsAndBytesFormat:
    """The bits follow from the parts of each weight."""

    def place(self, name: str) -> WeightPart | None:
        found = FOUR_BITS.fullmatch(name)
        if found is not None:
            return WeightPart(found[1], found[2], is_telling=found[2].startswith(STATE))
        module, _, part = name.rpartition(".")
        if part not in INT8_PARTS:
            return None
        return WeightPart(f"{module}.weight", part, is_telling=part == "weight_format")

    def shape(self, weight: str, parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
        return _int8_shape(parts) if "SCB" in parts else _block_shape(parts)

    def unpacked(self, weight: str, parts: Parts) -> GroupedWeight | Tensor:
        if "SCB" in parts:
            scales = parts["SCB"][:, None] * (1 / LARGEST)
            return GroupedWeight(parts["weight"], scales, None, 8)
        content = bytes(parts[_state_name(parts)].tolist())
        return _looked_up(read_state(content), parts)


def bitsandbytes_format(settings: Settings) -> BitsAndBytesFormat:
    """Return the format, whatever the settings: the parts of the weights say the same."""
    return BitsAndBytesFormat()


def read_state(content: bytes) -> QuantState:
    """Return the JSON beside a weight. Raises UnsupportedFormat."""
    try:
        state = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnsupportedFormat(f"its quant_state cannot be read as JSON: {error}") from error
    if not isinstance(state, dict):
        raise UnsupportedFormat("its quant_state must be a JSON object")
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(map(_is_count, shape)):
        raise UnsupportedFormat(f"its quant_state has the shape {shape!r}, must have two sizes")
    is_nested = "nested_blocksize" in state
    offset = state.get("nested_offset", 0.0)
    if not isinstance(offset, int | float) or not math.isfinite(offset):
        raise UnsupportedFormat(
            f"its quant_state has the nested_offset {offset!r}, must have a number"
        )
    nested_block = _block(state, "nested_blocksize") if is_nested else 0
    return QuantState((shape[0], shape[1]), _block(state, "blocksize"), nested_block, offset)


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _block(state: Settings, name: str) -> int:
    found = whole(state, name)
    if not 1 <= found <= MAX_BLOCK:
        raise UnsupportedFormat(f"its quant_state has {name} {found}, must have 1 to {MAX_BLOCK}")
    return found


def _state_name(parts: Mapping[str, object]) -> str:
    found = [name for name in parts if name.startswith(STATE)]
    if len(found) != 1:
        raise UnsupportedFormat(f"it has {len(found)} parts {STATE}..., must have one")
    return found[0]


def _block_shape(parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
    name = _state_name(parts)
    state = read_state(parts[name].content)
    dtypes = {
        name: ("U8",),
        "weight": ("U8", "F16", "BF16", "F32"),
        "quant_map": ("F32",),
        "absmax": ("U8",) if state.nested_block else ("F32",),
    }
    if state.nested_block:
        dtypes |= dict.fromkeys(("nested_absmax", "nested_quant_map"), ("F32",))
    shapes = shapes_of(parts, dtypes)
    refuse_others(parts, dtypes)
    refuse_shape("quant_map", shapes["quant_map"], (NUM_LEVELS,))
    refuse_shape("absmax", shapes["absmax"], (state.num_blocks,))
    if state.nested_block:
        num_nested = -(-state.num_blocks // state.nested_block)
        refuse_shape("nested_absmax", shapes["nested_absmax"], (num_nested,))
        refuse_shape("nested_quant_map", shapes["nested_quant_map"], (NUM_NESTED_LEVELS,))
    num_bytes = math.prod(shapes["weight"]) * BYTES[parts["weight"].dtype]
    if num_bytes != -(-state.num_elements // 2):
        raise UnsupportedFormat(
            f"its weight is {num_bytes} bytes, too few or many for {list(state.shape)}"
        )
    return state.shape


def _int8_shape(parts: Mapping[str, PartOutline]) -> tuple[int, ...]:
    shapes = shapes_of(parts, {"weight": ("I8",), "SCB": ("F32",)})
    refuse_others(parts, INT8_PARTS)
    if len(shapes["weight"]) != 2:
        raise UnsupportedFormat("its weight must be a matrix")
    refuse_shape("SCB", shapes["SCB"], shapes["weight"][:1])
    order = parts.get("weight_format")
    if order is not None and any(order.content):
        raise UnsupportedFormat(
            f"its weight_format is {order.content[0]}, must be 0: row after row"
        )
    return shapes["weight"]


def _looked_up(state: QuantState, parts: Parts) -> Tensor:
    scales = parts["absmax"]
    if state.nested_block:
        nested = parts["nested_absmax"].repeat_interleave(state.nested_block)[: len(scales)]
        scales = parts["nested_quant_map"][scales.int()] * nested + state.nested_offset
    content = parts["weight"].contiguous().view(torch.uint8).flatten()
    places = torch.stack([content >> 4, content & 15], -1).flatten()[: state.num_elements]
    values = parts["quant_map"][places.int()]
    whole_blocks = state.num_elements // state.block
    runs = values[: whole_blocks * state.block].view(-1, state.block)
    runs *= scales[:whole_blocks, None]
    values[whole_blocks * state.block :] *= scales[whole_blocks:]
    return values.view(state.shape)
