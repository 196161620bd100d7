"""Estimates how long steps take, and how fast the waiting queue moves: tokens a second of the
recent steps that left someone waiting. Other steps say nothing about it: they had no more to
compute.
"""

from quire.scheduler.step import Step

DECAY = 0.95
"""The weight of a step when the next has ended."""


class ThroughputEstimate:
    """Times steps. Each counts from when it was scheduled, or from the end of the step before it if
    that was later.
    """

    def __init__(self) -> None:
        self._began: dict[int, tuple[float, bool]] = {}
        self._ended_s = 0.0
        self._num_tokens = 0.0
        self._seconds = 0.0
        self._was_busy = False
        self._busy_steps_s = 0.0
        self._busy_s = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second; None while it is not known."""
        return self._num_tokens / self._seconds if self._seconds > 0 else None

    def seconds_for(self, num_tokens: int) -> float:
        """Return the expected seconds for `num_tokens`; 0 while unknown."""
        tokens_per_s = self.tokens_per_s
        return 0.0 if tokens_per_s is None else num_tokens / tokens_per_s

    @property
    def pace(self) -> float:
        """The time that passes for each second of steps while someone waits: what is between steps
        counts too."""
        return self._busy_s / self._busy_steps_s if self._busy_steps_s > 0 else 1.0

    @property
    def num_under_way(self) -> int:
        """The number of steps that have begun and not ended."""
        return len(self._began)

    def begin(self, number: int, now: float, *, leaves_someone: bool) -> None:
        """Note that a step was scheduled; `leaves_someone` says whether requests still wait."""
        self._began[number] = now, leaves_someone

    def end(self, step: Step, now: float) -> float:
        """Return the seconds that the step took."""
        began_s, left_someone = self._began.pop(step.number, (now, False))
        seconds = now - max(began_s, self._ended_s)
        if left_someone and self._was_busy:
            self._busy_steps_s = DECAY * self._busy_steps_s + seconds
            self._busy_s = DECAY * self._busy_s + now - self._ended_s
        self._was_busy = left_someone
        if left_someone and step.num_tokens:
            self._num_tokens = DECAY * self._num_tokens + step.num_tokens
            self._seconds = DECAY * self._seconds + seconds
        self._ended_s = now
        return seconds
