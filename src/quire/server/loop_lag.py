"""How late the event loop comes to what is due: a timer that is set anew every 10 ms sees it.

A call that holds the loop for longer than that delays the timer by its length, less the up to
10 ms that the timer had yet to run.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

TICK_S = 0.01
SLICE_S = 10.0
NUM_SLICES = 6


class LagObserver(Protocol):
    """Is told how late the event loop was, and when it was seen."""

    def on_loop_lag(self, lag_s: float, now: float) -> None: ...


class LoopLagTimer:
    """Measures the lag of the running event loop from its construction until `stop`."""

    __slots__ = ("_clock", "_due_s", "_handle", "_loop", "_observer")

    def __init__(self, observer: LagObserver, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._set()

    def stop(self) -> None:
        self._handle.cancel()

    def _set(self) -> None:
        self._due_s = self._clock() + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = self._clock()
        self._observer.on_loop_lag(max(now - self._due_s, 0.0), now)
        self._set()


class RecentMaximum:
    """The largest value of the last minute, to ten seconds: of the slice of time that has begun and
    of the five before it. The clock must not go back."""

    __slots__ = ("_slice", "_slices")

    def __init__(self) -> None:
        self._slice = 0
        self._slices = deque([0.0] * NUM_SLICES, maxlen=NUM_SLICES)

    def observe(self, value: float, now: float) -> None:
        self._begin_slices(int(now // SLICE_S))
        if value > self._slices[-1]:
            self._slices[-1] = value

    def value(self) -> float:
        return max(self._slices)

    def _begin_slices(self, newest: int) -> None:
        self._slices.extend([0.0] * min(newest - self._slice, NUM_SLICES))
        self._slice = newest
