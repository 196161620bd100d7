"""bitsandbytes: tables of 16 levels with scales for blocks, and int8 with scales for rows. torchao:
integers and floats of few bits with scales for blocks of rows and columns."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.loading.published.written import Stored, check_loaded, publish, random

BITSANDBYTES = {"load_in_4bit": True}
TORCHAO = {"quant_method": "torchao"}
STATE = ".weight.quant_state.bitsandbytes__nf4"
QDATA, SCALE, ZERO_POINT = "._weight_qdata", "._weight_scale", "._weight_zero_point"


def fractions(weight: Tensor, shape: Sequence[int], limit: int = 250) -> Tensor:
    return (random(weight, shape, limit) + 1) / 1024


def as_bytes(state: Mapping[str, object]) -> Tensor:
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


def four_bits(weight: Tensor, *, block: int = 48, nested_block: int = 0) -> Stored:
    """The last block of a weight may have fewer numbers."""
    num_blocks = -(-weight.numel() // block)
    places = random(weight, (weight.numel(),), 16)
    levels = fractions(weight, (16,)) - 0.125
    state: dict[str, object] = {"shape": list(weight.shape), "blocksize": block}
    absmax = fractions(weight, (num_blocks,))
    parts = {".weight.absmax": absmax}
    if nested_block:
        coded, table = random(weight, (num_blocks,), 256), fractions(weight, (256,), 900)
        of_blocks = fractions(weight, (-(-num_blocks // nested_block),), 90)
        state |= {"nested_blocksize": nested_block, "nested_offset": 0.375}
        absmax = table[coded] * of_blocks[torch.arange(num_blocks) // nested_block] + 0.375
        parts = {".weight.absmax": coded.to(torch.uint8), ".weight.nested_absmax": of_blocks}
        parts[".weight.nested_quant_map"] = table
    pairs = places.view(-1, 2)
    parts |= {
        ".weight": (pairs[:, :1] * 16 + pairs[:, 1:]).to(torch.uint8),
        ".weight.quant_map": levels,
        STATE: as_bytes(state),
    }
    values = levels[places] * absmax[torch.arange(weight.numel()) // block]
    return Stored(parts, values.view(weight.shape))


def packed(weight: Tensor) -> Stored:
    numbers, groups = random(weight, weight.shape, 16) - 8, weight.shape[1] // 32
    scale, zero = (fractions(weight, (groups, len(weight)), limit) for limit in (99, 98))
    nibbles = numbers.view(len(weight), -1, 2) & 15
    values = numbers * scale.T.repeat_interleave(32, 1) + zero.T.repeat_interleave(32, 1)
    qdata = (nibbles[..., 0] + 16 * nibbles[..., 1]).to(torch.uint8)
    return Stored({QDATA: qdata, SCALE: scale, ZERO_POINT: zero}, values)


def in_blocks(
    weight: Tensor, blocks: tuple[int, ...], zero_limit: int, *, floats: bool = False
) -> Stored:
    """Scales are for `blocks` of rows and columns."""
    numbers = (random(weight, weight.shape, 256) - 128).to(torch.int8)
    scale = fractions(weight, blocks)
    spread = scale
    if blocks:
        rows = scale.repeat_interleave(len(weight) // blocks[0], 0)
        spread = rows.repeat_interleave(weight.shape[1] // blocks[1], 1)
    if floats:
        qdata = fractions(weight, weight.shape).to(torch.float8_e5m2)
        return Stored({QDATA: qdata, SCALE: scale}, qdata.float() * spread)
    zero = torch.full(blocks, zero_limit, dtype=torch.int8)
    whole = (numbers.int() - zero_limit).float() * spread
    return Stored({QDATA: numbers, SCALE: scale, ZERO_POINT: zero}, whole)


@pytest.mark.parametrize("nested_block", [0, 20])
def test_four_bits_in_blocks(nested_block: int, tmp_path: Path) -> None:
    check_loaded(
        publish(tmp_path, BITSANDBYTES, lambda _, w: four_bits(w, nested_block=nested_block))
    )


def test_blocks_of_all_kinds(tmp_path: Path) -> None:
    kinds: Mapping[str, Callable[[Tensor], Stored]] = {
        "q": packed,
        "k": lambda weight: in_blocks(weight, (1, 1), 0),
        "v": lambda weight: in_blocks(weight, (), 0),
        "o": lambda weight: in_blocks(weight, (4, 2), 0),
        "gate": lambda weight: in_blocks(weight, (len(weight), 2), -3),
        "up": lambda weight: in_blocks(weight, (len(weight), 1), 0, floats=True),
        "down": lambda weight: in_blocks(weight, (2, 4), 0, floats=True),
    }
    check_loaded(publish(tmp_path, TORCHAO, lambda name, w: kinds[name.split(".")[-1][:-5]](w)))
