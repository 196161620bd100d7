"""Copies a sampler's results to the host, in one transfer that is waited for later."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class HostCopy(Protocol):
    """A tensor on its way to the host."""

    def wait(self) -> Tensor:
        """Wait for the copy and return the tensor on the host."""


class DeviceToHost(Protocol):
    """Copies tensors from a device to the host."""

    def fetch(self, numbers: Tensor) -> HostCopy:
        """Start to copy a tensor, which must not be written again."""


def build_device_to_host(device: torch.device) -> DeviceToHost:
    """Return the way of copying that suits `device`."""
    return CudaDeviceToHost(device) if device.type == "cuda" else LazyDeviceToHost()


@dataclass(frozen=True, slots=True)
class LazyHostCopy:
    """A tensor that is copied when it is waited for."""

    numbers: Tensor

    def wait(self) -> Tensor:
        return self.numbers.cpu()


class LazyDeviceToHost:
    """Copies from a device that computes synchronously, such as a CPU."""

    def fetch(self, numbers: Tensor) -> LazyHostCopy:
        return LazyHostCopy(numbers)


@dataclass(frozen=True, slots=True)
class AsyncHostCopy:
    """A copy under way: `numbers` are pinned memory, whose values are undefined before `done`."""

    numbers: Tensor
    done: torch.cuda.Event

    def wait(self) -> Tensor:
        self.done.synchronize()
        return self.numbers


class CudaDeviceToHost:
    """Copies from a GPU on a stream of its own, so that a copy does not wait for what is launched
    on the current stream after it. Each copy has its own pinned memory, which torch's caching host
    allocator does not reuse before the copy is done.
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
