"""Takes the blocks of ggml's types apart, into integers with scales: nothing is rounded.

Source of the layouts: `ggml-common.h` and `ggml-quants.c` of
https://github.com/ggml-org/llama.cpp. In the comments d and m are halves that begin a block, and
a nibble is 4 bits: the low ones of a run of bytes come before the high ones.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from quire.models.loading.gguf.ggml_types import GgmlType
from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of FP4 (E2M1), which are no integers."""
PLAIN: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)
_NIBBLES = torch.tensor([0, 4], dtype=torch.uint8)[:, None]
_PAIRS = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
_BITS = torch.arange(8, dtype=torch.uint8)

# [rows, blocks, bytes of a block] to integers [rows, blocks, numbers of a block], and scales and
# offsets [rows, blocks, groups of a block].
_Parts = tuple[Tensor, Tensor, Tensor | None]


def take_apart(content: Tensor, kind: GgmlType) -> GroupedWeight:
    """Return the numbers of blocks. `content` is [rows, bytes] of uint8, whole blocks in each row.
    The type is one of blocks that is read."""
    blocks = content.view(*content.shape[:-1], -1, kind.block_bytes)
    num_bits, unpack = _TYPES[kind.name]
    numbers, scales, offsets = unpack(blocks)
    return GroupedWeight(
        numbers.flatten(-2),
        scales.flatten(-2),
        None if offsets is None else offsets.flatten(-2),
        num_bits,
    )


def form_of(kind: GgmlType) -> GroupForm:
    """Return the form of the weights that blocks of this type hold."""
    return take_apart(torch.zeros(1, kind.block_bytes, dtype=torch.uint8), kind).form


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the half at a byte of each block: [rows, blocks, 1] of float16."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)


def _float(blocks: Tensor, at: int) -> Tensor:
    """Return the same of float32, in which a half times an integer of 8 bits is exact."""
    return _half(blocks, at).float()


def _nibbles(content: Tensor, run: int) -> Tensor:
    """Return the low nibbles of a run of so many bytes, then its high ones, and so for each run."""
    runs = content.reshape(*content.shape[:-1], -1, 1, run)
    return torch.flatten(runs >> _NIBBLES & 15, -3)


def _pairs(content: Tensor) -> Tensor:
    """Return the lowest two bits of a run of 32 bytes, then the next, and so for each run."""
    runs = content.reshape(*content.shape[:-1], -1, 1, 32)
    return torch.flatten(runs >> _PAIRS & 3, -3)


def _bits(content: Tensor) -> Tensor:
    """Return the lowest bit of all bytes, then the next: [..., 8 x bytes]."""
    return (content[..., None, :] >> _BITS[:, None] & 1).flatten(-2)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Return the 32 bits of 4 bytes, one after the other."""
    return (blocks[..., at : at + 4, None] >> _BITS & 1).flatten(-2)


def _q4_0(blocks: Tensor) -> _Parts:
    """d, 16 bytes of nibbles; less 8."""
    return _signed(_nibbles(blocks[..., 2:], 16), 8), _half(blocks, 0), None


def _q4_1(blocks: Tensor) -> _Parts:
    """d, m, 16 bytes of nibbles."""
    return _signed(_nibbles(blocks[..., 4:], 16), 0), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> _Parts:
    """d, 32 fifth bits, 16 bytes of nibbles; less 16."""
    numbers = _nibbles(blocks[..., 6:], 16) | _fifth_bits(blocks, 2) << 4
    return _signed(numbers, 16), _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> _Parts:
    """d, m, 32 fifth bits, 16 bytes of nibbles."""
    numbers = _nibbles(blocks[..., 8:], 16) | _fifth_bits(blocks, 4) << 4
    return _signed(numbers, 0), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> _Parts:
    """d, 32 signed bytes."""
    return blocks[..., 2:].contiguous().view(torch.int8), _half(blocks, 0), None


def _q2_k(blocks: Tensor) -> _Parts:
    """16 bytes of scales, whose high nibbles are of offsets, 64 bytes of pairs, d, m."""
    scales = blocks[..., :16]
    numbers = _signed(_pairs(blocks[..., 16:80]), 0)
    return numbers, _float(blocks, 80) * (scales & 15), -_float(blocks, 82) * (scales >> 4)


def _q3_k(blocks: Tensor) -> _Parts:
    """32 bytes of third bits, 64 bytes of pairs, 12 bytes of scales, d; less 4."""
    numbers = _pairs(blocks[..., 32:96]) | _bits(blocks[..., :32]) << 2
    low = _nibbles(blocks[..., 96:104], 8)
    high = (blocks[..., None, 104:108] >> _PAIRS & 3).flatten(-2)
    scales = _signed(low | high << 4, 32)
    return _signed(numbers, 4), _float(blocks, 108) * scales, None


def _q4_k(blocks: Tensor) -> _Parts:
    """d, m, 12 bytes of scales and offsets, 128 bytes of nibbles."""
    numbers = _signed(_nibbles(blocks[..., 16:], 32), 0)
    return numbers, *_scales_k(blocks)


def _q5_k(blocks: Tensor) -> _Parts:
    """d, m, 12 bytes of scales and offsets, 32 bytes of fifth bits, 128 bytes of nibbles."""
    numbers = _nibbles(blocks[..., 48:], 32) | _bits(blocks[..., 16:48]) << 4
    return _signed(numbers, 0), *_scales_k(blocks)


def _q6_k(blocks: Tensor) -> _Parts:
    """128 bytes of nibbles, 64 bytes of pairs, 16 signed bytes of scales, d; less 32."""
    numbers = _nibbles(blocks[..., :128], 64) | _pairs(blocks[..., 128:192]) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return _signed(numbers, 32), _float(blocks, 208) * scales, None


def _iq4_nl(blocks: Tensor) -> _Parts:
    """d, 16 bytes of nibbles, each a place in a table."""
    return _looked_up(_nibbles(blocks[..., 2:], 16), IQ4_VALUES), _half(blocks, 0), None


def _iq4_xs(blocks: Tensor) -> _Parts:
    """d, the high pairs of 8 scales, 4 bytes of their nibbles, 128 bytes of nibbles, each a place
    in a table."""
    low = (blocks[..., 4:8, None] >> _NIBBLES[:, 0] & 15).flatten(-2)
    high = (blocks[..., 2:4, None] >> _PAIRS[:, 0] & 3).flatten(-2)
    scales = _signed(low | high << 4, 32)
    numbers = _looked_up(_nibbles(blocks[..., 8:], 16), IQ4_VALUES)
    return numbers, _float(blocks, 0) * scales, None


def _mxfp4(blocks: Tensor) -> _Parts:
    """An exponent, 16 bytes of nibbles, each a place in a table."""
    scales = torch.exp2(blocks[..., :1].float() - 128)
    return _looked_up(_nibbles(blocks[..., 1:], 16), MXFP4_VALUES), scales, None


def _scales_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return 8 scales and offsets of 6 bits, each times d or m: 4 bytes of scales, 4 of offsets,
    whose highest pairs belong to the second half of either, and 4 of that half's nibbles."""
    first, second, nibbles = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([first & 63, nibbles & 15 | first >> 6 << 4], -1)
    offsets = torch.cat([second & 63, nibbles >> 4 | second >> 6 << 4], -1)
    return _float(blocks, 0) * scales, -_float(blocks, 2) * offsets


def _signed(numbers: Tensor, less: int) -> Tensor:
    return numbers.to(torch.int8) - less


def _looked_up(places: Tensor, values: tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.int8)[places.int()]


_TYPES: Mapping[str, tuple[int, Callable[[Tensor], _Parts]]] = MappingProxyType(
    {
        "Q4_0": (4, _q4_0),
        "Q4_1": (4, _q4_1),
        "Q5_0": (5, _q5_0),
        "Q5_1": (5, _q5_1),
        "Q8_0": (8, _q8_0),
        "Q2_K": (2, _q2_k),
        "Q3_K": (3, _q3_k),
        "Q4_K": (4, _q4_k),
        "Q5_K": (5, _q5_k),
        "Q6_K": (6, _q6_k),
        "IQ4_NL": (8, _iq4_nl),
        "IQ4_XS": (8, _iq4_xs),
        "MXFP4": (8, _mxfp4),
    }
)
