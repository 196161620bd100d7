"""The clients of a simulation and the server between them and the engine.

The server's event loop takes one thing after another: what clients send, and what a step adds to
each output. So a crowd of requests, or of streams, is delayed by its own number.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.scheduler.reasons import Reason
from quire.scheduler.step import Delta
from quire.workbench.simulation.cost.cost_file import ServerCost
from quire.workbench.simulation.traces.traced_request import TracedRequest
from quire.workbench.simulation.virtual.arrivals import Arrivals


@dataclass(slots=True)
class SimulatedAnswer:
    """The answer to one request: seconds of the simulated clock, counts, and the reason why it
    ended, None before it has. Of turns that others follow it keeps the `outputs`."""

    request: TracedRequest
    sent_s: float
    first_s: float | None = None
    last_s: float = 0.0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    reason: Reason | None = None
    is_refused: bool = False
    outputs: list[int] = field(default_factory=list)

    @property
    def inter_token_s(self) -> float | None:
        """The mean seconds between its tokens; None of fewer than two."""
        if self.first_s is None or self.num_output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1)


@dataclass(slots=True)
class Clients:
    """Sends what arrives, and keeps what came back: `answers` in the order of sending, `gaps_s`
    between two tokens of one answer."""

    arrivals: Arrivals
    server: ServerCost
    answers: list[SimulatedAnswer] = field(default_factory=list)
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    num_ended: int = 0
    _live: dict[str, SimulatedAnswer] = field(default_factory=dict)
    _on_the_way: deque[tuple[float, SimulatedAnswer]] = field(default_factory=deque)
    _free_s: float = 0.0

    @property
    def next_s(self) -> float | None:
        """When the engine gets the next request, or when one is sent, if that is all that is known;
        None if nothing comes any more."""
        return self._on_the_way[0][0] if self._on_the_way else self.arrivals.next_s

    def send(self, until_s: float) -> None:
        """Let the server take in what clients send up to this time."""
        arrivals, server = self.arrivals, self.server
        while (next_s := arrivals.next_s) is not None and next_s <= until_s:
            sent_s, request = arrivals.take()
            answer = SimulatedAnswer(request, sent_s)
            self.answers.append(answer)
            self._free_s = max(sent_s, self._free_s) + server.request_s
            self._on_the_way.append((self._free_s + server.request_latency_s, answer))

    def take(self, now: float) -> list[SimulatedAnswer]:
        """Return what the engine gets by now, in its order."""
        self.send(now)
        due = []
        while self._on_the_way and self._on_the_way[0][0] <= now:
            answer = self._on_the_way.popleft()[1]
            self._live[answer.request.id] = answer
            due.append(answer)
        return due

    def refuse(self, request_id: str, reason: Reason, now: float) -> None:
        """Answer a request that the engine does not take."""
        answer = self._live.pop(request_id)
        answer.is_refused = True
        self._end(answer, reason, now + self.server.reply_latency_s)

    def deliver(self, deltas: Sequence[Delta], ended_s: float) -> None:
        """Bring what a step that ended at `ended_s` adds to the outputs to their clients."""
        self.send(ended_s)
        delta_s, latency_s = self.server.delta_s, self.server.reply_latency_s
        live, gaps_s = self._live, self.gaps_s
        free_s = max(ended_s, self._free_s)
        for delta in deltas:
            free_s += delta_s
            answer = live[delta.request_id]
            num_tokens = len(delta.token_ids)
            if num_tokens:
                at_s = free_s + latency_s
                if answer.first_s is None:
                    answer.first_s = at_s
                else:
                    gaps_s.append(at_s - answer.last_s)
                answer.last_s = at_s
                answer.num_output_tokens += num_tokens
                if answer.request.later:
                    answer.outputs += delta.token_ids
            if delta.finish is not None:
                answer.num_cached_tokens = delta.finish.num_cached_tokens
                answer.num_preemptions = delta.finish.num_preemptions
                del live[delta.request_id]
                self._end(answer, delta.finish.reason, free_s + latency_s)
        self._free_s = free_s

    def _end(self, answer: SimulatedAnswer, reason: Reason, now: float) -> None:
        answer.reason = reason
        answer.last_s = now
        self.num_ended += 1
        self.arrivals.note_end(answer.request, answer.outputs, now)
