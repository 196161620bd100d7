"""Decides when an engine that is watched tells what it holds: so often while it works, and once
more when its work is done; but more seldom where that would take more than a small part of its
time.
"""

from collections.abc import Callable

from quire.scheduler.live.in_flight import InFlight
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.live.live_watch import LiveWatch

MAX_SHARE = 0.008
"""Frames take at most this part of the engine's time, but for the first, which is whole."""


class LiveTimer:
    """Takes the frames of one watch, `interval_s` seconds apart at least."""

    def __init__(self, in_flight: InFlight, interval_s: float, clock: Callable[[], float]) -> None:
        self._watch = LiveWatch(in_flight)
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = clock()
        self._is_stale = True

    @property
    def wait_s(self) -> float | None:
        """The seconds until there is something to tell; None where all was told."""
        return max(self._due_s - self._clock(), 0.0) if self._is_stale else None

    def take(self, *, has_worked: bool) -> LiveFrame | None:
        """Return a frame if it is time for one and something may have changed: the engine
        `has_worked` since the last call, or has told nothing since it had."""
        self._is_stale |= has_worked
        now = self._clock()
        if not self._is_stale or now < self._due_s:
            return None
        self._is_stale = False
        frame = self._watch.frame()
        taken_s = 0.0 if frame.is_whole else self._clock() - now
        self._due_s = now + max(self._interval_s, taken_s / MAX_SHARE)
        return frame
