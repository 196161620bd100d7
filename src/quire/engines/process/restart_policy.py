"""Decides when an engine that has ended is started again, and when no more."""

from collections import deque

WINDOW_S = 600.0
"""Restarts are counted within so many seconds."""
FIRST_DELAY_S, LAST_DELAY_S = 0.5, 30.0
"""An engine that ended without having done anything is started again after so long, twice as long
after each further one in a row."""


class RestartPolicy:
    """At most `max_restarts` within WINDOW_S, at once after an engine that has done something."""

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._times: deque[float] = deque()
        self._num_idle = 0

    @property
    def num_recent(self) -> int:
        """The number of restarts within WINDOW_S before the last question."""
        return len(self._times)

    def delay_s(self, now: float, *, has_progressed: bool) -> float | None:
        """Return in how many seconds an engine that ends `now` is started again, and count that;
        None if it is not."""
        while self._times and now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        if len(self._times) >= self._max_restarts:
            return None
        self._times.append(now)
        self._num_idle = 0 if has_progressed else self._num_idle + 1
        if self._num_idle == 0:
            return 0.0
        return float(min(FIRST_DELAY_S * 2 ** (self._num_idle - 1), LAST_DELAY_S))
