"""The engine of a simulation: the real scheduler and cache, in virtual time.

It goes on as the engine and its loop do (`engine/engine.py`, `engine/loop.py`): read what came,
schedule, run, update. With overlap a step is scheduled while the device computes the one before,
whose result comes next. Only the device is another: it tells when a step ends, and sleeps for
nobody.
"""

from collections.abc import Callable
from itertools import count, islice
from math import inf
from typing import NamedTuple

from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Step, StepResult
from quire.simulation.traces.traced_request import END_TOKEN
from quire.simulation.virtual.clients import Clients
from quire.simulation.virtual.device import Device

FIRST_OUTPUT = 1 << 31
"""Output tokens are consecutive numbers from here on, so that no two outputs are equal."""
NUM_OUTPUTS = (1 << 32) - FIRST_OUTPUT


class InFlight(NamedTuple):
    """A step that the device computes, and when it ends."""

    step: Step
    ends_s: float


class StepTimes(NamedTuple):
    """A step of the simulation: when it was scheduled, and when its result came."""

    step: Step
    began_s: float
    ended_s: float


class VirtualEngine:
    """Takes the steps of a simulation. `on_step` is told each step in its order."""

    def __init__(
        self,
        scheduler: Scheduler,
        device: Device,
        clients: Clients,
        *,
        is_overlapped: bool,
        on_step: Callable[[StepTimes], None] = lambda _: None,
    ) -> None:
        self._scheduler = scheduler
        self._device = device
        self._clients = clients
        self._is_overlapped = is_overlapped
        self._on_step = on_step
        self._in_flight: InFlight | None = None
        self._ends_at: dict[str, int] = {}
        self._tokens = count()
        self.now = -inf  # it begins with the first request
        self.num_steps = 0

    def run(self, seed: int) -> None:
        """Go on until all requests have ended; the seed makes the prompts' tokens."""
        scheduler, clients = self._scheduler, self._clients
        while True:
            for answer in clients.take(self.now):
                request = answer.request
                if request.ends_early:
                    position = request.num_prompt_tokens + request.num_output_tokens - 1
                    self._ends_at[request.id] = position
                refusal = scheduler.add(request.new_request(seed), self.now)
                if refusal is not None:
                    clients.refuse(answer, refusal.reason, self.now)
            if scheduler.has_work or self._in_flight is not None:
                self._step()
            elif (next_s := clients.next_s) is None:
                return
            else:
                self.now = max(self._device.wake_s(next_s), self.now)

    def _step(self) -> None:
        """Take one step, as the engine does; with overlap the result is that of the one before."""
        began_s = self.now
        step = self._scheduler.schedule(began_s)
        previous, self._in_flight = self._in_flight, None
        starts_s = began_s if previous is None else max(began_s, previous.ends_s)
        ends_s = self._device.end_s(step, starts_s)
        self.num_steps += 1
        self._on_step(StepTimes(step, began_s, ends_s))
        if previous is not None:
            self._end(*previous)
        if self._is_overlapped and step.chunks:
            self._in_flight = InFlight(step, ends_s)
        else:
            self._end(step, ends_s)
        self.now = self._device.next_s(step, self.now)

    def _end(self, step: Step, ended_s: float) -> None:
        """Take in the result of a step."""
        self.now = max(self.now, ended_s)
        deltas = self._scheduler.update(step, self._result(step), self.now)
        self._scheduler.take_events()
        self._clients.deliver(deltas, self.now)
        for delta in deltas if self._ends_at else ():
            if delta.finish is not None:
                self._ends_at.pop(delta.request_id, None)

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
