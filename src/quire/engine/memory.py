"""Measures a device's memory; what is made of the numbers is arithmetic in `cache/sizing.py`."""

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the device: all of them, and those that nobody uses now."""

    total: int
    available: int


def measure(device: torch.device) -> DeviceMemory:
    """CUDA memory from the driver; on a CPU the machine's, or the container's if that is less."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free)
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    if limit is not None and limit < total:
        total = limit
        available = min(available, limit - (used or 0) + _reclaimable_bytes())
    return DeviceMemory(total, max(available, 0))


def kv_budget(memory: DeviceMemory, device: torch.device, utilization: float) -> int:
    """Bytes for KV after the model is loaded.

    CUDA: the share `utilization` of the whole device, less all that is in use. CPU: that share of
    half of what is still available, since the machine has other work.
    """
    if device.type == "cuda":
        used = memory.total - memory.available
        return int(memory.total * utilization) - used
    return int(memory.available * utilization / 2)


def _reclaimable_bytes() -> int:
    """File pages that count as used but are given up when memory is wanted, such as weights that
    were just read."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _cgroup_bytes(name: str) -> int | None:
    try:
        text = (CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
