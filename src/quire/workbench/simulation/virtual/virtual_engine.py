"""The engine of a simulation: the real scheduler and cache, in virtual time.

It goes on as the engine and its loop do (`engine/engine.py`, `engine/loop.py`): read what came,
schedule, run, update. With overlap a step is scheduled while the device computes the one before,
whose result comes next. Only the device is another: it tells when a step ends, and sleeps for
nobody. So an engine says when it goes on, and whoever runs several lets the earliest do so.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count, islice
from math import inf
from typing import NamedTuple, Protocol

from quire.cache.chain import Chain
from quire.cache.kv_cache import KVCache
from quire.cache.transfers import StoredPrefix
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Stats, Step, StepResult
from quire.workbench.simulation.traces.traced_request import END_TOKEN, TracedRequest
from quire.workbench.simulation.virtual.device import SimulatedDevice

FIRST_OUTPUT = 1 << 31
"""Output tokens are consecutive numbers from here on, so that no two outputs are equal."""
NUM_OUTPUTS = (1 << 32) - FIRST_OUTPUT


class PendingStep(NamedTuple):
    """A step that the device computes, and when it ends."""

    step: Step
    ends_s: float


class StepTimes(NamedTuple):
    """A step of the simulation: when it was scheduled, and when its result came."""

    step: Step
    began_s: float
    ended_s: float


class RoutedRequest(NamedTuple):
    """A request as an engine gets it. The blocks of `came_in`, if there is any, came in from
    another engine."""

    traced: TracedRequest
    new: NewRequest
    came_in: Chain | None = None


class EngineObserver(Protocol):
    """Hears what an engine does, in its order."""

    def note_step(self, times: StepTimes) -> None:
        """Note a step that was scheduled."""
        ...

    def deliver(self, deltas: Sequence[Delta], ended_s: float) -> None:
        """Take what a step that ended at `ended_s` adds to the outputs."""
        ...

    def refuse(self, request_id: str, reason: Reason, now: float) -> None:
        """Take a request back that the engine does not take."""
        ...


class VirtualEngine:
    """Takes the steps of one engine: `go_on` does what is due at `next_s`, which is infinite while
    there is nothing to do."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KVCache,
        device: SimulatedDevice,
        front: EngineObserver,
        *,
        is_overlapped: bool,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._device = device
        self._front = front
        self._is_overlapped = is_overlapped
        self._handed: deque[RoutedRequest] = deque()
        self._in_flight: PendingStep | None = None
        self._ends_at: dict[str, int] = {}
        self._calls_tools: dict[str, bool] = {}
        self._tokens = count()
        self._doings = self._run()
        self.now = -inf  # it begins with the first request
        self.next_s = inf
        self.num_steps = 0

    @property
    def stats(self) -> Stats:
        """The scheduler's accounts as they are now."""
        return self._scheduler.stats

    def hand(self, handed: RoutedRequest, at_s: float) -> None:
        """Hand over a request, which is read before the next step that is scheduled."""
        self._handed.append(handed)
        if self.next_s == inf:
            self.next_s = max(self._device.wake_s(at_s), self.now)

    def lacking(self, chain: Chain) -> int:
        """Return how many tokens of a prompt's full blocks are not in the prefix cache."""
        found = self._with_others(chain)
        return (found.num_blocks - found.num_here) * self._cache.transfers.block_size

    def prefers_load(self, num_tokens: int, load_s: float) -> bool:
        """Return whether so many tokens are loaded in less time than computing them takes, as far
        as the scheduler knows."""
        return self._scheduler.loads.prefers_load(num_tokens, load_s)

    def go_on(self) -> None:
        """Do what is due at `next_s`."""
        self.now = max(self.now, self.next_s)
        self.next_s = next(self._doings)

    def _run(self) -> Iterator[float]:
        """Yield when there is something to do next, once what was due is done."""
        while True:
            self._take_in()
            if self._scheduler.has_work or self._in_flight is not None:
                yield from self._step()
                yield self.now
            else:
                yield inf

    def _take_in(self) -> None:
        """Read the requests that were handed over."""
        while self._handed:
            traced, new, came_in = self._handed.popleft()
            if came_in is not None:
                self._cache.transfers.take_in(came_in, self._with_others(came_in).missing)
            if traced.ends_early:
                self._ends_at[new.id] = traced.num_prompt_tokens + traced.num_output_tokens - 1
            if traced.is_turn:
                self._calls_tools[new.id] = bool(traced.later)
            refusal = self._scheduler.add(new, self.now)
            if refusal is not None:
                self._front.refuse(new.id, refusal.reason, self.now)

    def _with_others(self, chain: Chain) -> StoredPrefix:
        """Return how much of a prompt there is with engines that have all of it."""
        transfers = self._cache.transfers
        return transfers.find(chain, len(chain.digests), lambda _: True)

    def _step(self) -> Iterator[float]:
        """Take one step, as the engine does; with overlap the result is that of the one before."""
        began_s = self.now
        step = self._scheduler.schedule(began_s)
        previous, self._in_flight = self._in_flight, None
        starts_s = began_s if previous is None else max(began_s, previous.ends_s)
        ends_s = self._device.end_s(step, starts_s)
        self.num_steps += 1
        self._front.note_step(StepTimes(step, began_s, ends_s))
        if previous is not None:
            yield previous.ends_s
            self._end(previous.step)
        if self._is_overlapped and step.chunks:
            self._in_flight = PendingStep(step, ends_s)
        else:
            yield ends_s
            self._end(step)
        self.now = self._device.next_s(step, self.now)

    def _end(self, step: Step) -> None:
        """Take in the result of a step, which ends now."""
        deltas = self._scheduler.update(step, self._result(step), self.now)
        self._scheduler.take_events()
        for delta in deltas if self._ends_at or self._calls_tools else ():
            if delta.finish is not None:
                self._ends_at.pop(delta.request_id, None)
                calls_tools = self._calls_tools.pop(delta.request_id, None)
                if calls_tools is not None:
                    self._scheduler.note_turn(delta.request_id, self.now, calls_tools=calls_tools)
        self._front.deliver(deltas, self.now)

    def _result(self, step: Step) -> StepResult:
        if not self._ends_at:
            num_sampled = sum(chunk.samples for chunk in step.chunks)
            sampled = islice(self._tokens, num_sampled)
            return StepResult(
                step.number, tuple(FIRST_OUTPUT + each % NUM_OUTPUTS for each in sampled)
            )
        ends_at, tokens = self._ends_at, []
        for chunk in step.chunks:
            if chunk.samples:
                token = FIRST_OUTPUT + next(self._tokens) % NUM_OUTPUTS
                is_last = ends_at.get(chunk.request_id) == chunk.start + chunk.num_tokens
                tokens.append(END_TOKEN if is_last else token)
        return StepResult(step.number, tuple(tokens))
