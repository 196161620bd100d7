"""The loop in one breath: schedule, run, update. Overlapped, a step is scheduled and launched while
the device still computes the one before, whose result comes one turn later."""

from collections.abc import Callable
from typing import NamedTuple

from quire.cache.kv_events import KVEvent
from quire.engine.runner import LaunchedStep, Runner
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal, Stats, StepResult


class StepOutput(NamedTuple):
    """What one step did: its number, the tokens it computed, its duration, and the outputs. Number
    0: no step came to its end."""

    step: int
    num_tokens: int
    step_s: float
    deltas: list[Delta]


class InFlightStep(NamedTuple):
    launched: LaunchedStep
    began_s: float


NO_STEP = StepOutput(0, 0, 0.0, [])


class Engine:
    """Owns the scheduler and the runner; `clock` gives seconds that only grow; `on_close` ends
    what was opened with the engine. `is_overlapped`: for devices that compute while the host goes
    on.
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
        return self._scheduler.has_work or self._in_flight is not None

    @property
    def stats(self) -> Stats:
        return self._scheduler.stats

    def submit(self, new: NewRequest) -> Refusal | None:
        return self._scheduler.add(new, self._clock())

    def abort(self, request_id: str) -> Delta | None:
        return self._scheduler.abort(request_id, self._clock())

    def reset_prefix_cache(self) -> None:
        self._scheduler.reset_prefix_cache()

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """Those since they were last taken."""
        return self._scheduler.take_kv_events()

    def take_events(self) -> tuple[tuple[str, Event], ...]:
        """What is new in the timelines of requests, since this was last asked."""
        return self._scheduler.take_events()

    def step(self) -> StepOutput:
        """One step from choice to outputs; overlapped, the outputs are those of the step before,
        and of this one too if it computes nothing."""
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
        """No turn comes after it."""
        if self._on_close is not None:
            self._on_close()
