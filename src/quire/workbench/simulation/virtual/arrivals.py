"""The requests of a simulation in the order in which clients send them: by a trace's clock, or each
when another was answered.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from quire.workbench.simulation.traces.traced_request import TracedRequest


class SentRequest(NamedTuple):
    """A request and when its client sent it."""

    sent_s: float
    request: TracedRequest


class Arrivals(Protocol):
    """Tells what is sent next, and is told when clients have their answers."""

    @property
    def next_s(self) -> float | None:
        """When the next request is sent, as far as is known; None if none will be."""
        ...

    def take(self) -> SentRequest:
        """Return the next request, which is sent at `next_s`."""
        ...

    def note_end(self, now: float) -> None:
        """Note that a client has all of an answer, or was refused."""
        ...


class OpenLoop:
    """Requests are sent at their times, whatever becomes of others."""

    def __init__(self, requests: Sequence[TracedRequest]) -> None:
        self._requests = requests
        self._next = 0

    @property
    def next_s(self) -> float | None:
        done = self._next == len(self._requests)
        return None if done else self._requests[self._next].sent_s

    def take(self) -> SentRequest:
        request = self._requests[self._next]
        self._next += 1
        return SentRequest(request.sent_s, request)

    def note_end(self, now: float) -> None:
        """Nobody waits for an answer here."""


class ClosedLoop:
    """Each of `concurrency` clients sends its next request when its last has ended."""

    def __init__(self, requests: Sequence[TracedRequest], concurrency: int) -> None:
        self._requests = requests
        self._next = 0
        self._due: list[float] = []
        for _ in range(min(concurrency, len(requests))):
            heappush(self._due, 0.0)

    @property
    def next_s(self) -> float | None:
        if self._next == len(self._requests) or not self._due:
            return None
        return self._due[0]

    def take(self) -> SentRequest:
        request = self._requests[self._next]
        self._next += 1
        return SentRequest(heappop(self._due), request)

    def note_end(self, now: float) -> None:
        heappush(self._due, now)
