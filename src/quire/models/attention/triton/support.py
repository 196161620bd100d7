"""Tells where Triton's kernels can run; triton is imported only where it is to be used."""

from importlib.util import find_spec
from shutil import which

import torch

from quire.models.attention.backend import Site
from quire.models.attention.triton.tiles import MAX_HEAD_SIZE, MAX_V_HEAD_SIZE, Device, Tile
from quire.models.kv.kv_codec import Codec

MIN_CAPABILITY = 80
MAX_EXACT_HEAD_SIZE = 128
"""The largest head size of float32 times decoded numbers: beyond, all registers spill."""
INTERPRETED = Device(
    MIN_CAPABILITY,
    num_sms=8,
    is_interpreted=True,
    tile=Tile(rows=64, keys=128, num_warps=1, num_stages=1),
)
"""An interpreter takes as long for any tile, and so the fewer the better."""


def why_not(site: Site) -> str | None:
    """Return why the kernels cannot run there, in words, or None if they can."""
    return why_not_device(site.device) or why_not_sizes(
        site.codec, site.head_size, site.v_head_size
    )


def why_not_device(device: torch.device) -> str | None:
    """Return why no kernel of Triton runs on `device`, in words, or None if one does."""
    if find_spec("triton") is None:
        return "triton is not installed; it comes with PyTorch for CUDA"
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


def is_interpreted() -> bool:
    """Return whether kernels run on a CPU, one program after another, as in tests."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _has_compiler() -> bool:
    """Return whether there is a C compiler: Triton compiles its launchers when it first runs."""
    import triton

    return bool(triton.knobs.build.cc or which("gcc") or which("clang"))


def describe(device: torch.device) -> Device:
    """Return the properties of a device that `why_not` accepts."""
    if device.type == "cpu":
        return INTERPRETED
    return Device(
        _capability(device), torch.cuda.get_device_properties(device).multi_processor_count
    )


def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
