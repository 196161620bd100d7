"""The time that a device computes during some steps, by torch's profiler."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

COPIES = ("Memcpy", "Memset")
"""Names of what the device does beside kernels begin so."""


class DeviceTime(NamedTuple):
    """The milliseconds of a step in which the device does something, and how many kernels, and how
    many copies and fillings of memory, it does."""

    busy_ms: float
    num_kernels: float
    num_copies: float

    def idle_share(self, step_ms: float) -> float:
        """Return the share of an unprofiled step's time in which the device does nothing: a
        profiler slows the host down, and kernels hardly."""
        return max(0.0, 1 - self.busy_ms / step_ms)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of what some spans, each of a begin and an end, cover together."""
    covered, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def profile_steps(device: torch.device, step: Callable[[], object], num_steps: int) -> DeviceTime:
    """Profile so many calls of `step`. On a CPU its operations stand in for kernels."""
    is_cpu = device.type == "cpu"
    activity = ProfilerActivity.CPU if is_cpu else ProfilerActivity.CUDA
    if not is_cpu:
        torch.cuda.synchronize(device)  # a step that was launched before is not counted
    with profile(activities=[activity]) as profiled:
        for _ in range(num_steps):
            step()
        if not is_cpu:
            torch.cuda.synchronize(device)
    events = [event for event in profiled.events() or () if event.device_type.name == activity.name]
    busy_us = union((event.time_range.start, event.time_range.end) for event in events)
    num_copies = sum(event.name.startswith(COPIES) for event in events)
    return DeviceTime(
        busy_us / 1e3 / num_steps,
        (len(events) - num_copies) / num_steps,
        num_copies / num_steps,
    )
