"""The constants that each kernel is compiled for: they follow from a model's sizes and dtype."""

from typing import NamedTuple

import torch
from triton import next_power_of_2

from quire.models.attention.triton.launch import DTYPES
from quire.models.native.decoder.fused import HeadLayout

GATE_COLUMNS = 1024
"""Columns of `gate` per program."""
WARP_COLUMNS = 512
"""Columns of a norm per warp, for at most MAX_WARPS warps."""
MAX_WARPS = 16
GATE_WARPS = 4


class Constants(NamedTuple):
    """The `tl.constexpr` arguments of a kernel, and the warps of a program."""

    values: dict[str, object]
    num_warps: int


def norm_constants(width: int, kind: int, dtype: torch.dtype) -> Constants:
    columns = next_power_of_2(width)
    values = {"WIDTH": width, "COLUMNS": columns, "KIND": kind, "STORED": DTYPES[dtype]}
    return Constants(values, min(MAX_WARPS, max(1, columns // WARP_COLUMNS)))


def rope_constants(heads: HeadLayout, rotary_dim: int, dtype: torch.dtype) -> Constants:
    """Return the constants of `rope`, whose programs have one warp each."""
    rest = heads.head_size - rotary_dim
    values = {
        "NUM_QUERY": heads.num_query,
        "HEAD_SIZE": heads.head_size,
        "ROTARY": rotary_dim,
        "HEAD_COLUMNS": next_power_of_2(heads.head_size),
        "HALF_COLUMNS": next_power_of_2(rotary_dim // 2),
        "REST_COLUMNS": next_power_of_2(rest) if rest else 0,
        "KIND": 0 if heads.query is None else heads.query.kind,
        "STORED": DTYPES[dtype],
    }
    return Constants(values, 1)


def gate_constants(width: int, act: int, dtype: torch.dtype) -> Constants:
    columns = min(GATE_COLUMNS, next_power_of_2(width))
    values = {"WIDTH": width, "COLUMNS": columns, "ACT": act, "STORED": DTYPES[dtype]}
    return Constants(values, GATE_WARPS)


def grouped_constants(num_rows: int, dtype: torch.dtype) -> tuple[dict[str, object], int, int]:
    """Return the tile of a product by a weight in groups, its warps and its stages. Few rows are
    what a step of decoding has; a tile of more reads a weight less often."""
    is_exact = dtype.itemsize > 2
    tile = {
        "ROWS": 16 if num_rows <= 16 else 64,
        "COLUMNS": 32 if is_exact else 64,
        "DEPTH": 32 if is_exact else 64,
        "COMPUTE": DTYPES[dtype],
    }
    return tile, 4, 3
