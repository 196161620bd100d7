"""The constants that each kernel is compiled for: they follow from a layer's sizes and dtype alone,
so that a layer has one program for steps of any kind, and its sums one order."""

from typing import NamedTuple

import torch
from triton import next_power_of_2

from quire.models.attention.triton.launch import DTYPES
from quire.models.triton_device import is_interpreted

ROW_SECTOR = 8
"""Neighbouring numbers in float32 that a GPU reads at once."""
RULE_NUMBERS, SCAN_NUMBERS, SELECTIVE_NUMBERS = 1024, 1024, 512
"""Numbers of a state per warp: as registers of a thread, 32 or 16."""
MAX_COLUMNS = 32
NORM_NUMBERS = 1024
CHANNEL_REGISTERS = 168
"""The registers of a thread where each channel has its decay. Left alone the assembler spills some
for the sake of 16 programs at once; these are 12."""


class Launch(NamedTuple):
    """The `tl.constexpr` arguments of a kernel, the warps of a program, and the tiles of the last
    dimension of its grid. `max_registers` are those that a thread may have, None to leave it to the
    assembler."""

    values: dict[str, object]
    num_warps: int
    num_tiles: int
    max_registers: int | None = None

    @property
    def options(self) -> dict[str, object]:
        """Return the keyword arguments of the launch. The interpreter has no registers."""
        bounded = self.max_registers is not None and not is_interpreted()
        return {
            **self.values,
            "num_warps": self.num_warps,
            **({"maxnreg": self.max_registers} if bounded else {}),
        }


class RuleSizes(NamedTuple):
    """The sizes of a gated delta rule."""

    key_heads: int
    heads: int
    key_size: int
    value_size: int


class ScanSizes(NamedTuple):
    """The sizes of a scan: heads of `head_size` values, and groups of heads with B and C of
    `state_size`. A selective scan is one head of all channels."""

    groups: int
    heads: int
    head_size: int
    state_size: int
    is_selective: bool


def convolution_launch(
    channels: int, width: int, dtype: torch.dtype, *, is_activated: bool, has_one_each: bool
) -> Launch:
    """Return the launch of `convolve`. Tokens are no part of each other's sums, so that steps of
    one token for each sequence, `has_one_each`, may have another tile."""
    tokens, columns, num_warps = (1, 128, 1) if has_one_each else (32, 32, 4)
    columns = min(columns, next_power_of_2(channels))
    values = {
        "CHANNELS": channels,
        "WIDTH": width,
        "TAPS": next_power_of_2(width - 1),
        "TOKENS": tokens,
        "COLUMNS": columns,
        "IS_ACTIVATED": is_activated,
        "STORED": DTYPES[dtype],
    }
    return Launch(values, num_warps, -(-channels // columns))


def rule_launch(
    sizes: RuleSizes, dtype: torch.dtype, *, is_by_channel: bool, has_gates: bool
) -> Launch:
    """Return the launch of `apply_delta_rule`."""
    rows = next_power_of_2(sizes.key_size)
    most = max(ROW_SECTOR, min(MAX_COLUMNS, RULE_NUMBERS // rows))
    columns = min(most, next_power_of_2(sizes.value_size))
    values = {
        "HEADS": sizes.heads,
        "SHARED": sizes.heads // sizes.key_heads,
        "KEY_SIZE": sizes.key_size,
        "VALUE_SIZE": sizes.value_size,
        "ROWS": rows,
        "COLUMNS": columns,
        "SCALE": sizes.key_size**-0.5,
        "IS_BY_CHANNEL": is_by_channel,
        "HAS_GATES": has_gates,
        "STORED": DTYPES[dtype],
    }
    num_warps = max(1, rows * columns // RULE_NUMBERS)
    bound = CHANNEL_REGISTERS if is_by_channel and num_warps == 1 else None
    return Launch(values, num_warps, -(-sizes.value_size // columns), bound)


def norm_launch(heads: int, size: int, dtype: torch.dtype, *, is_product_rounded: bool) -> Launch:
    """Return the launch of `norm_heads`, of which the tiles are those of one token."""
    columns = next_power_of_2(size)
    at_once = max(1, NORM_NUMBERS // columns)
    values = {
        "HEADS": heads,
        "SIZE": size,
        "COLUMNS": columns,
        "AT_ONCE": at_once,
        "IS_PRODUCT_ROUNDED": is_product_rounded,
        "STORED": DTYPES[dtype],
    }
    return Launch(values, 4, -(-heads // at_once))


def scan_launch(sizes: ScanSizes, dtype: torch.dtype, vector: int) -> Launch:
    """Return the launch of `scan`, over states that begin at multiples of `vector` numbers."""
    columns = next_power_of_2(sizes.state_size)
    numbers = SELECTIVE_NUMBERS if sizes.is_selective else SCAN_NUMBERS
    rows = min(max(1, numbers // columns), next_power_of_2(sizes.head_size))
    values = {
        "HEADS": sizes.heads,
        "SHARED": sizes.heads // sizes.groups,
        "HEAD_SIZE": sizes.head_size,
        "STATE_SIZE": sizes.state_size,
        "ROWS": rows,
        "COLUMNS": columns,
        "VECTOR": vector,
        "IS_SELECTIVE": sizes.is_selective,
        "STORED": DTYPES[dtype],
    }
    return Launch(values, 1, -(-sizes.head_size // rows))
