"""Decides when a watched engine produces a frame: at a fixed interval while it works, and once more
when its work is done; less often if frames would take more than a small share of its time."""

import logging
from collections.abc import Callable

from quire.scheduler.live.in_flight import InFlightRequests
from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.live.live_watch import LiveWatch

logger = logging.getLogger(__name__)

MAX_SHARE = 0.008
"""The maximum share of the engine's time for frames, except the first, which is complete."""


class LiveTimer:
    """Takes the frames of one watch, `interval_s` seconds apart at least. An error of the watch is
    logged and ends it, never the engine."""

    def __init__(
        self, in_flight: InFlightRequests, interval_s: float, clock: Callable[[], float]
    ) -> None:
        self._watch = LiveWatch(in_flight)
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = clock()
        self._is_stale = True

    @property
    def wait_s(self) -> float | None:
        """The seconds until the next frame; None if no change is unreported."""
        is_to_come = self._is_stale and self._due_s < float("inf")
        return max(self._due_s - self._clock(), 0.0) if is_to_come else None

    def take(self, *, has_worked: bool) -> LiveFrame | None:
        """Return a frame if it is time for one and something may have changed: the engine
        `has_worked` since the last call, or has told nothing since it had."""
        self._is_stale |= has_worked
        now = self._clock()
        if not self._is_stale or now < self._due_s:
            return None
        self._is_stale = False
        try:
            frame = self._watch.frame()
        except Exception:  # whoever looks on must not end an engine
            logger.exception("what the engine holds cannot be told any more")
            self._due_s = float("inf")
            return None
        taken_s = 0.0 if frame.is_whole else self._clock() - now
        self._due_s = now + max(self._interval_s, taken_s / MAX_SHARE)
        return frame
