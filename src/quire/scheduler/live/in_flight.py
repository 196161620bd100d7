"""The running and waiting requests for the live view, which changes nothing."""

from quire.cache.kv_cache import KVCache
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.request import Request
from quire.scheduler.running import RunningSet


class InFlightRequests:
    """The requests of one scheduler, whose `cache` has their blocks."""

    def __init__(self, running: RunningSet, waiting: WaitingQueue, cache: KVCache) -> None:
        self._running = running
        self._waiting = waiting
        self.cache = cache

    def running(self) -> list[Request]:
        """Return the running requests in their order."""
        return list(self._running)

    def waiting(self, most: int) -> list[Request]:
        """Return at most `most` waiting requests, tenant by tenant in no particular order."""
        return self._waiting.peek(most)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)
