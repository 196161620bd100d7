"""This machine as a device: what is measured of it within seconds, and what is assumed."""

import os
import platform
from pathlib import Path
from typing import NamedTuple

import torch

from quire.engine.startup.device_speed import measure_speed
from quire.engine.startup.outlined import OutlinedEngine
from quire.workbench.simulation.cost.cost_file import ServerCost
from quire.workbench.simulation.cost.devices import DeviceKind, DeviceSpec

CPU_INFO = Path("/proc/cpuinfo")
BUSY = "other programs keep this machine busy, so it measures as slower than it is when it serves"


class Overheads(NamedTuple):
    """The seconds of a step beside its products and attention: in all, for each layer, and for each
    sequence."""

    step_s: float
    layer_s: float
    seq_s: float


OVERHEADS = {
    DeviceKind.CPU: Overheads(step_s=1e-3, layer_s=0.0, seq_s=2e-4),
    DeviceKind.CUDA: Overheads(step_s=1e-3, layer_s=5e-6, seq_s=2e-5),
}
"""The overheads of a device that is measured. On a CPU the server's work on what a step adds to
each output is among them, since it takes the same cores."""
SERVER = ServerCost(request_s=1e-3, request_latency_s=1e-3, delta_s=2e-5, reply_latency_s=5e-4)
"""The server's part, assumed."""


def measured_device(engine: OutlinedEngine) -> DeviceSpec:
    """Return the device for which an engine was sized by what is measured of it now."""
    shape, device = engine.shape, engine.placement.device
    kind = DeviceKind(device.type)
    weight_bytes = shape.dense_bytes + shape.head_bytes
    speed = measure_speed(engine.placement, shape.dtype, weight_bytes, shape.hidden_size)
    overheads = OVERHEADS[kind]
    return DeviceSpec(
        name=_name(device),
        kind=kind,
        memory_bytes=engine.memory.total,
        reserved_bytes=engine.memory.total - engine.memory.available,
        bandwidth_bytes_s=speed.bytes_s,
        flops_s={shape.dtype: speed.flops_s},
        source="measured for this plan, by the kernels that would serve the model",
        step_overhead_s=overheads.step_s,
        layer_overhead_s=overheads.layer_s,
        seq_overhead_s=overheads.seq_s,
    )


def is_busy() -> bool:
    """Return whether other programs have used half of this machine's cores in the last minute."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) / 2


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"this machine's {torch.cuda.get_device_name(device)}"
    num_cores = len(os.sched_getaffinity(0))
    return f"this machine's {num_cores} cores of {_cpu_name()}"


def _cpu_name() -> str:
    """Return the name of the CPU; where Linux tells none, that of its kind."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
