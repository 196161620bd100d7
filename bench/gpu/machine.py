"""Reads what a record of the acceptance must say of where it was made; no names of hosts."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu.check import Figure
from bench.machine import read_commit, read_machine

PACKAGES = ("torch", "triton", "transformers")
GPU_FIELDS = ("name", "driver_version", "memory.total", "compute_cap")


def facts_here(root: Path, *, is_rehearsal: bool) -> dict[str, Figure]:
    """Return the commit, the card or the CPU, and the versions of what computes."""
    card = read_machine().describe() if is_rehearsal else _card()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = {name: _version(name) for name in PACKAGES}
    return {"commit": read_commit(root), "on": card, "python": python, **versions}


def _card() -> str:
    """Return what the driver says of the first card."""
    query = [
        "nvidia-smi",
        f"--query-gpu={','.join(GPU_FIELDS)}",
        "--format=csv,noheader",
        "-i",
        "0",
    ]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no card found: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
