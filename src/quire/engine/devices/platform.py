"""The parts of a machine that a start uses: the memory of its devices, and what captures launches.

A test has a platform of its own, which captures on a CPU and says how much memory there is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quire.engine.devices.memory import DeviceMemory, measure
from quire.models.graphs.capture import GraphDevice
from quire.models.graphs.cuda import CUDADevice
from quire.models.parallel.ranks import Ranks


def cuda_graphs(device: torch.device, ranks: Ranks | None) -> CUDADevice | None:
    """Return the recorder of a GPU's launches, the same on all `ranks`; None for a CPU."""
    return CUDADevice(device, ranks) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Platform:
    """The devices of a machine.

    measure: returns the memory of a device.
    graph_device: returns what captures a device's launches, the same on all ranks if there are
        several; None for a device that has none to capture, since its kernels are called.
    """

    measure: Callable[[torch.device], DeviceMemory] = measure
    graph_device: Callable[[torch.device, Ranks | None], GraphDevice | None] = cuda_graphs


THIS_MACHINE = Platform()
