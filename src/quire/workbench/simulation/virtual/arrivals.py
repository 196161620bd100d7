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

    def note_end(self, request: TracedRequest, outputs: Sequence[int], now: float) -> None:
        """Note that a client has all of an answer, whose tokens are given for a turn of a session,
        or was refused."""
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

    def note_end(self, request: TracedRequest, outputs: Sequence[int], now: float) -> None:
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

    def note_end(self, request: TracedRequest, outputs: Sequence[int], now: float) -> None:
        """Let the client send its next request."""
        heappush(self._due, now)


class Turns:
    """Requests that arrive as others say, and the later turns of their sessions, each some time
    after the answer before. The seed makes the prompts' tokens."""

    def __init__(self, first: Arrivals, seed: int) -> None:
        self._first = first
        self._seed = seed
        self._due: list[tuple[float, int, TracedRequest]] = []
        self._num_turns = 0

    @property
    def next_s(self) -> float | None:
        first_s = self._first.next_s
        if not self._due:
            return first_s
        return self._due[0][0] if first_s is None else min(first_s, self._due[0][0])

    def take(self) -> SentRequest:
        first_s = self._first.next_s
        if self._due and (first_s is None or self._due[0][0] <= first_s):
            sent_s, _, request = heappop(self._due)
            return SentRequest(sent_s, request)
        return self._first.take()

    def note_end(self, request: TracedRequest, outputs: Sequence[int], now: float) -> None:
        """Let the session go on, if it does; otherwise its client has ended."""
        if not request.later or not outputs:
            self._first.note_end(request, outputs, now)
            return
        following = request.next_turn(request.new_request(self._seed).prompt_token_ids, outputs)
        self._num_turns += 1
        heappush(self._due, (now + following.sent_s, self._num_turns, following))
