"""Decides whether Triton kernels can run on a device; triton is imported only for use."""

from importlib.util import find_spec
from shutil import which

import torch

MIN_CAPABILITY = 80


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
    found = capability(device)
    if found < MIN_CAPABILITY:
        return f"it needs a GPU of compute capability 8.0, this one has {found / 10}"
    return None if _has_compiler() else "it finds no C compiler (gcc, clang or $CC) to launch by"


def is_interpreted() -> bool:
    """Return whether kernels run on a CPU, one program after another, as in tests."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _has_compiler() -> bool:
    """Return whether there is a C compiler: Triton compiles its launchers when it first runs."""
    import triton

    return bool(triton.knobs.build.cc or which("gcc") or which("clang"))


def capability(device: torch.device) -> int:
    """Return the compute capability of a GPU, in tenths."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
