"""Compiles the linear kernel alone, for its tests and benchmark, and loads it."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import torch

from quire.models.native import linear

ISA = "avx512"
SOURCE = Path(linear.__file__).with_name("linear.cpp")
FLAGS = (
    *("-std=gnu++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
    *("-Wall", "-Wextra", "-Werror"),
)


def can_build() -> bool:
    return shutil.which("g++") is not None and _has_bf16_dot()


def build_linear(folder: Path) -> linear.LinearKernel:
    """The library stays in `folder`. Raises CalledProcessError where the compiler fails."""
    built = folder / "linear.so"
    subprocess.run(["g++", *FLAGS, f"-DQUIRE_ISA={ISA}", "-o", str(built), str(SOURCE)], check=True)
    for runtime in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    kernel = linear.bind_linear(ctypes.CDLL(str(built)), ISA)
    assert kernel is not None
    return kernel


def _has_bf16_dot() -> bool:
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "avx512_bf16" in flags.read_text()
