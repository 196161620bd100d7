"""Where Triton's kernels can run; nothing here imports triton unless it is to be used."""

from importlib.util import find_spec
from shutil import which
from typing import NamedTuple

import torch

from quire.models.attention.triton.tiles import MAX_K_WIDTH, MAX_V_WIDTH, Device, Tile
from quire.models.kv.kv_codec import Codec

MIN_CAPABILITY = 80
MAX_EXACT_WIDTH = 128
"""Of float32 times what is decoded: beyond, all registers spill."""
INTERPRETED = Device(
    MIN_CAPABILITY,
    num_sms=8,
    is_interpreted=True,
    tile=Tile(rows=64, keys=128, num_warps=1, num_stages=1),
)
"""An interpreter takes as long for any tile, and so the fewer the better."""


class Site(NamedTuple):
    """Where attention is to run, over K and V of at most these widths."""

    device: torch.device
    codec: Codec
    k_width: int
    v_width: int


def why_not(site: Site) -> str | None:
    """What keeps the kernels from this, in words; None if nothing does."""
    if find_spec("triton") is None:
        return "triton is not installed; it comes with PyTorch for CUDA"
    return _why_not_device(site.device) or why_not_widths(*site[1:])


def _why_not_device(device: torch.device) -> str | None:
    if is_interpreted():
        return None if device.type == "cpu" else "TRITON_INTERPRET is set, which runs it on a CPU"
    if device.type != "cuda":
        return f"it runs on NVIDIA GPUs, not on {device.type}"
    if torch.version.hip is not None:
        return "it runs on NVIDIA GPUs, not on AMD's"
    capability = _capability(device)
    if capability < MIN_CAPABILITY:
        return f"it needs a GPU of compute capability 8.0, this one has {capability / 10}"
    return None if _has_compiler() else "it finds no C compiler (gcc, clang or $CC) to launch by"


def why_not_widths(codec: Codec, k_width: int, v_width: int) -> str | None:
    if k_width > MAX_K_WIDTH or v_width > MAX_V_WIDTH:
        return (
            f"keys of {k_width} or values of {v_width} elements are too wide, it takes "
            f"{MAX_K_WIDTH} and {MAX_V_WIDTH}"
        )
    is_exact = codec.dtype is torch.float32
    if is_exact and codec.is_quantised and k_width > MAX_EXACT_WIDTH:
        return f"float32 times quantised keys of over {MAX_EXACT_WIDTH} elements is not for it"
    return None


def is_interpreted() -> bool:
    """Do kernels run on a CPU, one program after another, as in tests?"""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _has_compiler() -> bool:
    """Triton compiles what launches its kernels, in C, when it first runs."""
    import triton

    return bool(triton.knobs.build.cc or which("gcc") or which("clang"))


def describe(device: torch.device) -> Device:
    """What a device that `why_not` has nothing against is like."""
    if device.type == "cpu":
        return INTERPRETED
    return Device(
        _capability(device), torch.cuda.get_device_properties(device).multi_processor_count
    )


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
