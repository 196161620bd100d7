"""The engine's step: schedule, run, update.

With overlap (async scheduling), a step is scheduled and launched while the device still computes
the one before it, whose result is returned one call later.
"""

from collections.abc import Callable
from typing import NamedTuple

from quire.cache.kv_events import KVEvent
from quire.engine.runner import LaunchedStep, Runner
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal, Stats, StepResult


class StepOutput(NamedTuple):
    """The output of one completed step: its number, how many tokens it computed, how many seconds
    it took, and the outputs of its requests. `step` is 0 if no step was completed."""

    step: int
    num_tokens: int
    step_s: float
    deltas: list[Delta]


class InFlightStep(NamedTuple):
    """A step that the device computes, and when it was begun, in seconds of the engine's clock."""

    launched: LaunchedStep
    began_s: float


NO_STEP = StepOutput(0, 0, 0.0, [])


class Engine:
    """Owns a scheduler and a runner, and takes their steps.

    `clock` returns seconds that never go back. `on_close` closes what was opened with the engine.
    `is_overlapped` schedules a step while the device computes the one before; it helps on devices
    that compute while the host goes on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        on_close: Callable[[], None] | None = None,
        *,
        is_overlapped: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._on_close = on_close
        self._is_overlapped = is_overlapped
        self._in_flight: InFlightStep | None = None
        self._ended_s = clock()

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do: a request to schedule or a result to collect."""
        return self._scheduler.has_work or self._in_flight is not None

    @property
    def stats(self) -> Stats:
        """The scheduler's counters and gauges as they are now."""
        return self._scheduler.stats

    def submit(self, new: NewRequest) -> Refusal | None:
        """Add a request to the waiting queue; return the refusal if it was not accepted."""
        return self._scheduler.add(new, self._clock())

    def abort(self, request_id: str) -> Delta | None:
        """End a request; return its last delta, or None if the engine does not have it."""
        return self._scheduler.abort(request_id, self._clock())

    def reset_prefix_cache(self) -> None:
        """Make everything that is cached now unfindable for later requests."""
        self._scheduler.reset_prefix_cache()

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """Return the events of the KV cache since this was last called."""
        return self._scheduler.take_kv_events()

    def take_events(self) -> tuple[tuple[str, Event], ...]:
        """Return the new entries of request timelines, with request ids, since the last call."""
        return self._scheduler.take_events()

    def step(self) -> StepOutput:
        """Take one step: schedule, run, update. With overlap the outputs are those of the step
        before, and of this one too if it computes nothing."""
        began = self._clock()
        new = InFlightStep(self._runner.launch(self._scheduler.schedule(began)), began)
        previous, self._in_flight = self._in_flight, None
        result = None if previous is None else self._runner.collect(previous.launched)
        self._runner.sample(new.launched)
        output = NO_STEP
        if previous is not None and result is not None:
            output = self._end(previous, result)
        if self._is_overlapped and new.launched.step.chunks:
            self._in_flight = new
            return output
        last = self._end(new, self._runner.collect(new.launched))
        return last if previous is None else output._replace(deltas=output.deltas + last.deltas)

    def _end(self, ended: InFlightStep, result: StepResult) -> StepOutput:
        step, now = ended.launched.step, self._clock()
        seconds = now - max(ended.began_s, self._ended_s)
        self._ended_s = now
        return StepOutput(
            step.number, step.num_tokens, seconds, self._scheduler.update(step, result, now)
        )

    def close(self) -> None:
        """Close what was opened with the engine; no step may follow."""
        if self._on_close is not None:
            self._on_close()
