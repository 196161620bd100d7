"""Decides whether the Triton attention kernels can run on a device."""

import torch

from quire.models.attention.backend import AttentionSetup
from quire.models.attention.triton.tiles import (
    MAX_HEAD_SIZE,
    MAX_V_HEAD_SIZE,
    DeviceProperties,
    TileShape,
)
from quire.models.kv.kv_codec import Codec
from quire.models.triton_device import MIN_CAPABILITY, capability, why_not_device

MAX_EXACT_HEAD_SIZE = 128
"""The largest head size of float32 times decoded numbers: beyond, all registers spill."""
INTERPRETED = DeviceProperties(
    MIN_CAPABILITY,
    num_sms=8,
    is_interpreted=True,
    tile=TileShape(rows=64, keys=128, num_warps=1, num_stages=1),
)
"""An interpreter takes as long for any tile, and so the fewer the better."""


def why_not(site: AttentionSetup) -> str | None:
    """Return why the kernels cannot run there, in words, or None if they can."""
    return why_not_device(site.device) or why_not_sizes(
        site.codec, site.head_size, site.v_head_size
    )


def why_not_sizes(codec: Codec, head_size: int, v_head_size: int) -> str | None:
    if head_size > MAX_HEAD_SIZE or v_head_size > MAX_V_HEAD_SIZE:
        return (
            f"keys of {head_size} or values of {v_head_size} elements are too wide, it takes "
            f"{MAX_HEAD_SIZE} and {MAX_V_HEAD_SIZE}"
        )
    is_exact = codec.dtype is torch.float32
    if is_exact and codec.is_quantised and head_size > MAX_EXACT_HEAD_SIZE:
        return f"float32 times quantised keys of over {MAX_EXACT_HEAD_SIZE} elements is not for it"
    return None


def describe(device: torch.device) -> DeviceProperties:
    """Return the properties of a device that `why_not` accepts."""
    if device.type == "cpu":
        return INTERPRETED
    return DeviceProperties(
        capability(device), torch.cuda.get_device_properties(device).multi_processor_count
    )
