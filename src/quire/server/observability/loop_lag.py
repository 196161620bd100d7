"""Measures how late the event loop comes to what is due, with a timer that is set every 25 ms.

A call that holds the loop for longer than that delays the timer by its length, less the up to
25 ms that the timer had yet to run. So does a machine that has no core to spare: that is told
apart, since no request is the cause of it.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

TICK_S = 0.025
SLICE_S = 10.0
NUM_SLICES = 6


class LagObserver(Protocol):
    """Takes how late the event loop was, how much of that it was held, and when that was seen."""

    def on_loop_lag(self, lag_s: float, held_s: float, now: float) -> None: ...


class LoopLagTimer:
    """Measures the lag of the running event loop from its construction until `stop`."""

    __slots__ = ("_clock", "_core_wait", "_due_s", "_handle", "_loop", "_observer", "_waited_s")

    def __init__(self, observer: LagObserver, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._core_wait = CoreWait()
        self._waited_s = self._core_wait.total_s()
        self._set()

    def stop(self) -> None:
        self._handle.cancel()
        self._core_wait.close()

    def _set(self) -> None:
        self._due_s = self._clock() + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now, waited_s = self._clock(), self._core_wait.total_s()
        lag_s = max(now - self._due_s, 0.0)
        held_s = max(lag_s - (waited_s - self._waited_s), 0.0)
        self._waited_s = waited_s
        self._observer.on_loop_lag(lag_s, held_s, now)
        self._set()


class CoreWait:
    """Reads how long the thread that made this has been ready to run while no core ran it, in
    seconds. Linux counts that; elsewhere it is 0."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        try:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return

    def total_s(self) -> float:
        if self._descriptor is None:
            return 0.0
        return int(os.pread(self._descriptor, 100, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class RecentMaximum:
    """Keeps the largest value of the last minute, to ten seconds: of the slice of time that has
    begun and of the five before it. The clock must not go back."""

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
