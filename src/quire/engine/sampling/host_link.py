"""How what a draw finds comes to the host: by one copy, which can be waited for later."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Arrival(Protocol):
    """Numbers on their way to the host."""

    def wait(self) -> Tensor:
        """They, on the host."""


class HostLink(Protocol):
    def fetch(self, numbers: Tensor) -> Arrival:
        """Start to bring them over; they are not written again."""


def build_host_link(device: torch.device) -> HostLink:
    return CudaLink(device) if device.type == "cuda" else PlainLink()


@dataclass(frozen=True, slots=True)
class Resting:
    """What stays on a device until somebody asks for it."""

    numbers: Tensor

    def wait(self) -> Tensor:
        return self.numbers.cpu()


class PlainLink:
    """From a device that computes when it is told to."""

    def fetch(self, numbers: Tensor) -> Resting:
        return Resting(numbers)


@dataclass(frozen=True, slots=True)
class Copying:
    """`numbers` are pinned memory, and mean nothing before `done`."""

    numbers: Tensor
    done: torch.cuda.Event

    def wait(self) -> Tensor:
        self.done.synchronize()
        return self.numbers


class CudaLink:
    """On a stream of its own, so that numbers do not wait for what is put on the current one after
    them. Pinned memory is fresh for each copy: torch gives none out again before its copy is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._homeward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fetch(self, numbers: Tensor) -> Copying:
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._homeward.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._homeward):
            here.copy_(numbers, non_blocking=True)
        numbers.record_stream(self._homeward)
        return Copying(here, self._homeward.record_event())
