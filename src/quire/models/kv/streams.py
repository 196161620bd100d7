"""The order of work on a device: streams take it one piece after the other, and marks are points in
that order.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


class Mark(Protocol):
    """A point in the order of a stream's work."""

    @property
    def is_reached(self) -> bool: ...

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two marks of one device that are reached."""


class Stream(Protocol):
    """Takes work in order. All marks that it is given come from streams of the same device."""

    def launch(self, work: Callable[[], object]) -> None:
        """Let `work` be done after all that was launched before."""

    def wait(self, mark: Mark) -> None:
        """Let later launches begin after the mark is reached."""

    def mark(self) -> Mark:
        """Return the end of all that was launched so far."""


@dataclass(frozen=True, slots=True)
class Instant:
    """The mark of a stream whose work is done at once."""

    time_s: float

    @property
    def is_reached(self) -> bool:
        return True

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, Instant)
        return self.time_s - earlier.time_s


class HostStream:
    """The stream of a device that is the host, whose work is done at once."""

    def launch(self, work: Callable[[], object]) -> None:
        work()

    def wait(self, mark: Mark) -> None:
        """Do nothing: the mark is reached."""

    def mark(self) -> Mark:
        return Instant(time.monotonic())


@dataclass(frozen=True, slots=True)
class CUDAMark:
    """A mark that is a CUDA event."""

    event: torch.cuda.Event

    @property
    def is_reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, CUDAMark)
        return float(earlier.event.elapsed_time(self.event)) / 1e3


@dataclass(frozen=True, slots=True)
class CUDAStream:
    """A stream of a GPU."""

    stream: torch.cuda.Stream

    def launch(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, CUDAMark)
        self.stream.wait_event(mark.event)

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return CUDAMark(event)
