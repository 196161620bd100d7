"""The way between a device and the host for what a draw is told and what it finds: one copy each
way, and none that the host must wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Arrival(Protocol):
    """Numbers on their way to the host."""

    def wait(self) -> Tensor:
        """They, on the host."""


class HostLink(Protocol):
    def send(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """These pieces of the host's memory, each [any], on the device. They travel as fp64: their
        integers are ids, counts and places, far below 2**53."""

    def fetch(self, numbers: Tensor) -> Arrival:
        """Start to bring them over; they are not written again."""


def build_host_link(device: torch.device) -> HostLink:
    return CudaLink(device) if device.type == "cuda" else PlainLink(device)


@dataclass(frozen=True, slots=True)
class Resting:
    """What stays on a device until somebody asks for it."""

    numbers: Tensor

    def wait(self) -> Tensor:
        return self.numbers.cpu()


@dataclass(frozen=True, slots=True)
class PlainLink:
    """For a device that computes when it is told to."""

    device: torch.device

    def send(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        packed = torch.empty(sum(map(len, pieces)), dtype=torch.float64)
        return _unpack(_pack(pieces, packed).to(self.device), pieces)

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
    """Sends in the order of the current stream; fetches on a stream of its own, so that they do not
    wait for what is put on the current one afterwards. Pinned memory is fresh for each copy: torch
    gives none out again before its copy is over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._homeward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        packed = torch.empty(sum(map(len, pieces)), dtype=torch.float64, pin_memory=True)
        return _unpack(_pack(pieces, packed).to(self._device, non_blocking=True), pieces)

    def fetch(self, numbers: Tensor) -> Copying:
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._homeward.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._homeward):
            here.copy_(numbers, non_blocking=True)
        numbers.record_stream(self._homeward)
        return Copying(here, self._homeward.record_event())


def _pack(pieces: Sequence[Tensor], packed: Tensor) -> Tensor:
    return torch.cat(list(pieces), out=packed)


def _unpack(packed: Tensor, pieces: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(packed, [len(piece) for piece in pieces])
    return [part.to(piece.dtype) for part, piece in zip(parts, pieces, strict=True)]
