"""Reads what a record of the acceptance must say of where it was made; no names of hosts."""

import hashlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.gpu.check import Figure
from bench.machine import read_machine

PACKAGES = ("torch", "triton", "transformers")
CODE = ("src/quire", "bench/gpu", "tests/models")
GPU_FIELDS = ("name", "driver_version", "memory.total", "compute_cap")


def facts_here(root: Path, *, is_rehearsal: bool) -> dict[str, Figure]:
    """Return a digest of the code, which is known where a copy has no history, the card or the
    CPU, and the versions of what computes: what passed where these were the same need not be run
    again."""
    card = read_machine().describe() if is_rehearsal else _card()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = {name: _version(name) for name in PACKAGES}
    return {"code": _digest(root), "on": card, "python": python, **versions}


def _digest(root: Path) -> str:
    """Return 12 hexadecimal digits of what is run: Quire's sources and those of the checks."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


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
