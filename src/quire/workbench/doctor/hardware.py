"""Looks at the machine: cores, memory, GPUs, and what a container leaves of them."""

import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

from quire.workbench.doctor.finding import Finding, fail, ok, warn

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
NVIDIA = Path("/dev/nvidiactl")
"""The driver of NVIDIA's GPUs makes this device."""
GIB = 2**30
LITTLE_MEMORY = 2 * GIB


def cpu_findings() -> Iterator[Finding]:
    """Yield the cores, and how many of them this process may use."""
    num_all, num_usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False)
    cores = f", {physical} cores" if physical else ""
    figures = {"num_cpus": num_all, "num_usable_cpus": num_usable}
    yield ok("CPU", f"{_cpu_name()}: {num_all} CPUs{cores}", figures)
    if num_usable < num_all:
        yield ok("affinity", f"this process may use {num_usable} of them")
    quota = _cpu_quota()
    if quota is not None and quota < num_usable:
        yield warn(
            "cgroup",
            f"the container may use {quota:g} CPUs at a time, fewer than the {num_usable} that "
            "it sees: more threads are stopped again and again",
            f"quire serve --num-threads {max(int(quota), 1)}",
        )


def _cpu_name() -> str:
    if not CPU_INFO.exists():
        return platform.processor() or platform.machine()
    for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _cpu_quota() -> float | None:
    """Return the CPUs that the cgroup (version 2) may use at a time, None without a limit."""
    if not CPU_QUOTA.exists():
        return None
    quota, _, period = CPU_QUOTA.read_text(encoding="ascii").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def memory_findings() -> Iterator[Finding]:
    """Yield the memory that there is, and what a container may have of it."""
    from quire.engine.startup.machine_facts import host_memory

    memory, machine = host_memory(), psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} GiB available of {memory.total / GIB:.1f}"
    if memory.total < machine.total:
        text += f", as the container is limited (the machine has {machine.total / GIB:.1f})"
    figures = {"total_bytes": memory.total, "available_bytes": memory.available}
    if memory.available < LITTLE_MEMORY:
        yield warn("memory", text, "end other programs, or give the container more")
    else:
        yield ok("memory", text, figures)


def gpu_findings() -> Iterator[Finding]:
    """Yield the GPUs that torch can use, and why it cannot use one that is there."""
    from quire.engine.startup.machine_facts import gpu_facts, torch_facts

    found = gpu_facts()
    for index, gpu in enumerate(found):
        memory = gpu.memory
        text = (
            f"{gpu.name}, compute capability {gpu.capability}, "
            f"{memory.available / GIB:.1f} GiB available of {memory.total / GIB:.1f}"
        )
        figures = {"total_bytes": memory.total, "available_bytes": memory.available}
        yield ok(f"GPU {index}", text, figures)
    if found:
        yield _triton()
    elif not NVIDIA.exists():
        yield ok("GPU", "none: models run on the CPU")
    elif torch_facts().cuda is None:
        yield warn("GPU", "there is one, but torch is built for CPUs", "install torch for CUDA")
    else:
        yield fail(
            "GPU",
            f"the driver is here, but torch for CUDA {torch_facts().cuda} finds no GPU",
            "see whether nvidia-smi lists one and whether the driver is new enough for this CUDA; "
            "in a container pass --gpus all",
        )


def _triton() -> Finding:
    if find_spec("triton") is None:
        return fail("Triton", "missing: GPUs need its kernels", "pip install triton")
    return ok("Triton", "installed")
