"""How what a draw finds comes to the host: by one copy, which can be waited for later."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class HostCopy(Protocol):
    """Numbers on their way to the host."""

    def wait(self) -> Tensor:
        """They, on the host."""


class DeviceToHost(Protocol):
    def fetch(self, numbers: Tensor) -> HostCopy:
        """Start to bring them over; they are not written again."""


def build_device_to_host(device: torch.device) -> DeviceToHost:
    return CudaDeviceToHost(device) if device.type == "cuda" else LazyDeviceToHost()


@dataclass(frozen=True, slots=True)
class LazyHostCopy:
    """What stays on a device until somebody asks for it."""

    numbers: Tensor

    def wait(self) -> Tensor:
        return self.numbers.cpu()


class LazyDeviceToHost:
    """From a device that computes when it is told to."""

    def fetch(self, numbers: Tensor) -> LazyHostCopy:
        return LazyHostCopy(numbers)


@dataclass(frozen=True, slots=True)
class AsyncHostCopy:
    """`numbers` are pinned memory, and mean nothing before `done`."""

    numbers: Tensor
    done: torch.cuda.Event

    def wait(self) -> Tensor:
        self.done.synchronize()
        return self.numbers


class CudaDeviceToHost:
    """On a stream of its own, so that numbers do not wait for what is put on the current one after
    them. Pinned memory is fresh for each copy: torch gives none out again before its copy is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fetch(self, numbers: Tensor) -> AsyncHostCopy:
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            here.copy_(numbers, non_blocking=True)
        numbers.record_stream(self._stream)
        return AsyncHostCopy(here, self._stream.record_event())
