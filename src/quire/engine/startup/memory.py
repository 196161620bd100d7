"""Measures a device's memory; what is made of the numbers is arithmetic in `cache/sizing.py`."""

import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from quire.cache.sizing import Budget, budget_before_load, smallest_budget

CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
FORGET_PEAK = "5"
"""Written to a process's `clear_refs`, makes its present memory its peak."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the device: all of them, and those that nobody uses now. A host's memory has other
    work; unified memory is a host's, or a GPU's that shares it.
    """

    total: int
    available: int
    is_host: bool
    is_unified: bool


def measure(device: torch.device) -> DeviceMemory:
    """CUDA memory from the driver and torch; on a CPU the machine's, or the container's if that is
    less.
    """
    if device.type == "cuda":
        return _measure_cuda(device)
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    if limit is not None and limit < total:
        total = limit
        available = min(available, limit - (used or 0) + _reclaimable_bytes())
    return DeviceMemory(total, max(available, 0), is_host=True, is_unified=True)


def step_budget(memory: DeviceMemory, budget: Budget, *, weight_bytes: int = 0) -> int:
    """Bytes for steps and KV, beside weights that are yet to come.

    A GPU: the share of the whole device, less all that is in use. A host: that share of half of
    what is still available, since the machine has other work. If KV memory is said outright, all
    that there is.
    """
    if memory.is_host:
        rest = memory.available - weight_bytes
        return rest if budget.is_outright else int(rest * budget.device_share / 2)
    each = budget_before_load(
        total=memory.total,
        used=memory.total - memory.available,
        share=budget.device_share,
        weight_bytes=weight_bytes,
    )
    return smallest_budget([each])


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """What `run` takes at its peak beyond what was in use before. Nothing of it is kept: what torch
    holds on to for later is given back, so that it is not counted twice.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.empty_cache()
        return peak - before
    before = _resident_bytes("VmRSS") if _forget_peak() else _resident_bytes("VmHWM")
    run()
    return max(_resident_bytes("VmHWM") - before, 0)


def _measure_cuda(device: torch.device) -> DeviceMemory:
    """In use is the most that anyone knows of: the driver, which sees other processes too, or what
    torch has allocated or reserved.
    """
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    used = max(total - free, allocated, reserved)
    properties = torch.cuda.get_device_properties(device)
    is_integrated = bool(getattr(properties, "is_integrated", False))
    return DeviceMemory(total, total - used, is_host=False, is_unified=is_integrated)


def _forget_peak() -> bool:
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text(FORGET_PEAK)
        return True
    return False


def _resident_bytes(name: str) -> int:
    """`VmRSS`, resident now, or `VmHWM`, at the peak."""
    with suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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
