"""The running and waiting requests and the pace of steps for the live view, which changes
nothing."""

from quire.cache.kv_cache import KVCache
from quire.scheduler.live.live_frame import LivePace
from quire.scheduler.pacing.pace import Pace
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet


class InFlightRequests:
    """The requests of one scheduler, whose `cache` has their blocks."""

    def __init__(
        self, running: RunningSet, waiting: WaitingQueue, cache: KVCache, pace: Pace
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._pace = pace
        self.cache = cache

    def running(self) -> list[Request]:
        """Return the running requests in their order."""
        return list(self._running)

    def waiting(self, most: int) -> list[Request]:
        """Return at most `most` waiting requests, tenant by tenant in no particular order."""
        return self._waiting.peek(most)

    @property
    def pace(self) -> LivePace:
        """The pace of the newest step."""
        share, times = self._pace.latest, self._pace.times
        num_tokens, tightest = (None, "") if share is None else share[:2]
        return LivePace(num_tokens, tightest, times.predicted_s, times.error)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
