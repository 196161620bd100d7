"""The loop in one breath: schedule, run, update. Overlapped, a step is scheduled and launched while
the device still computes the one before, whose result comes one turn later."""

from collections.abc import Callable
from typing import NamedTuple

from quire.cache.kv_events import KVEvent
from quire.engine.runner import Launched, Runner
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal, Stats, StepResult


class Turn(NamedTuple):
    """What one step did: its number, the tokens it computed, its duration, and the outputs. Number
    0: no step came to its end."""

    step: int
    num_tokens: int
    step_s: float
    deltas: list[Delta]


class UnderWay(NamedTuple):
    launched: Launched
    began_s: float


NO_TURN = Turn(0, 0, 0.0, [])


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
        self._awaited: UnderWay | None = None
        self._ended_s = clock()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._awaited is not None

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

    def turn(self) -> Turn:
        """One step from choice to outputs; overlapped, the outputs are those of the step before,
        and of this one too if it computes nothing."""
        began = self._clock()
        new = UnderWay(self._runner.launch(self._scheduler.schedule(began)), began)
        awaited, self._awaited = self._awaited, None
        result = None if awaited is None else self._runner.collect(awaited.launched)
        self._runner.draw(new.launched)
        turn = NO_TURN
        if awaited is not None and result is not None:
            turn = self._end(awaited, result)
        if self._is_overlapped and new.launched.step.chunks:
            self._awaited = new
            return turn
        last = self._end(new, self._runner.collect(new.launched))
        return last if awaited is None else turn._replace(deltas=turn.deltas + last.deltas)

    def _end(self, ended: UnderWay, result: StepResult) -> Turn:
        step, now = ended.launched.step, self._clock()
        seconds = now - max(ended.began_s, self._ended_s)
        self._ended_s = now
        return Turn(
            step.number, step.num_tokens, seconds, self._scheduler.update(step, result, now)
        )

    def close(self) -> None:
        """No turn comes after it."""
        if self._on_close is not None:
            self._on_close()
