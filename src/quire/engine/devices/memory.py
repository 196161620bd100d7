"""Measures the memory of a device; `cache/sizing.py` and `kv_plan.py` divide it."""

import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from quire.cache.sizing import Budget, budget_before_load

CGROUP = Path("/sys/fs/cgroup")
PROCESS = Path("/proc/self")
FORGET_PEAK = "5"
"""Written to a process's `clear_refs`, it resets its peak memory (proc(5))."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device: all bytes, and those that nobody uses now.

    is_host: the device is the CPU, whose memory other programs use too.
    is_unified: device and host share one memory, as on a CPU and on integrated GPUs.
    own: bytes that this process uses.
    """

    total: int
    available: int
    is_host: bool
    is_unified: bool
    own: int = 0

    def share(self, num_ranks: int) -> "DeviceMemory":
        """Return the share of the device for each of `num_ranks` ranks."""
        return replace(self, total=self.total // num_ranks, available=self.available // num_ranks)


def measure(device: torch.device) -> DeviceMemory:
    """Return the memory of a device: for CUDA from the driver and torch, for a CPU that of the
    machine, or of the container if that is less.
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
    """Return the bytes for steps and KV, beside weights that are not yet loaded.

    On a GPU it is the budget's share of the whole device, less all that is in use; on a host that
    share of half of what is available, since other programs need memory. Where other engines have
    shares of the GPU too, what they use counts only as far as it leaves less than the share. If the
    budget is outright (given in blocks, bytes or tokens), it is all that is available.
    """
    if memory.is_host:
        rest = memory.available - weight_bytes
        return rest if budget.is_explicit else int(rest * budget.device_share / 2)
    used = memory.total - memory.available
    if budget.is_device_shared and not budget.is_explicit:
        own = int(memory.total * budget.device_share) - memory.own
        return min(own, memory.available) - weight_bytes
    return budget_before_load(
        total=memory.total,
        used=used,
        share=budget.device_share,
        weight_bytes=weight_bytes,
    )


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """Return the peak bytes of `run` beyond the memory in use before. Memory that torch keeps for
    later is released, so that it is not counted twice."""
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
    """Return the memory of a GPU. In use is the largest of three numbers: the driver's, which
    includes other processes, and torch's allocated and reserved bytes.
    """
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    used = max(total - free, allocated, reserved)
    properties = torch.cuda.get_device_properties(device)
    is_integrated = bool(getattr(properties, "is_integrated", False))
    own = max(allocated, reserved)
    return DeviceMemory(total, total - used, is_host=False, is_unified=is_integrated, own=own)


def _forget_peak() -> bool:
    """Reset the peak memory of this process; return False where that is not allowed."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text(FORGET_PEAK)
        return True
    return False


def _resident_bytes(name: str) -> int:
    """Return resident bytes: `VmRSS` now, `VmHWM` at the peak."""
    with suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reclaimable_bytes() -> int:
    """Return the bytes of file pages that count as used but are freed when memory is needed, such
    as those of weights that were just read."""
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _cgroup_bytes(name: str) -> int | None:
    """Return a number of the container's memory controller, or None if there is none."""
    try:
        text = (CGROUP / name).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


class Memories(NamedTuple):
    """The memory of each rank's device, once the weights lie there, and that of the host which is
    each rank's share."""

    devices: tuple[DeviceMemory, ...]
    host: DeviceMemory

    @property
    def device(self) -> DeviceMemory:
        """The memory of rank 0's device."""
        return self.devices[0]
