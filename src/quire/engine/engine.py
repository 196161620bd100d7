"""The loop in one breath: schedule, run, update."""

from collections.abc import Callable
from typing import NamedTuple

from quire.cache.kv_events import KVEvent
from quire.engine.runner import Runner
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Refusal, Stats


class Turn(NamedTuple):
    """What one step did: its number, the tokens it computed, its duration, and the outputs."""

    step: int
    num_tokens: int
    step_s: float
    deltas: list[Delta]


class Engine:
    """Owns the scheduler and the runner; `clock` gives seconds that only grow; `on_close` ends
    what was opened with the engine.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._on_close = on_close

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

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
        """One step from choice to outputs."""
        began = self._clock()
        step = self._scheduler.schedule(began)
        result = self._runner.run(step)
        ended = self._clock()
        deltas = self._scheduler.update(step, result, ended)
        return Turn(step.number, step.num_tokens, ended - began, deltas)

    def close(self) -> None:
        """No turn comes after it."""
        if self._on_close is not None:
            self._on_close()
