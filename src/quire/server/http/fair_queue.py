"""A fair semaphore for a few workers: tenants are served in rotation, short work before long.

The order within a tenant is that of shortest job first with ageing.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple


class QueueFull(Exception):
    """Nothing more may wait; the text has the numbers."""


class _Waiting(NamedTuple):
    """One caller that waits; the least tuple is served first."""

    priority_key: float
    number: int
    size: int
    granted: asyncio.Future[None]


class FairQueue:
    """Gives out at most `num_permits` permits at once; work of at most `max_waiting` bytes waits.

    Tenants are served in rotation. The work of one tenant is ordered by its arrival plus its size
    over `bytes_per_s`: short work passes long work, but not for ever.
    """

    def __init__(
        self,
        num_permits: int,
        max_waiting: int,
        bytes_per_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._num_free = num_permits
        self._max_waiting = max_waiting
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._queues: dict[str, list[_Waiting]] = {}  # in the order of the rotation
        self._numbers = count()
        self.num_waiting = 0
        self.waiting_bytes = 0

    async def acquire(self, tenant: str, size: int) -> None:
        """Wait for a permit, which `release` gives back. `size` is the size of the work in bytes.

        Raises QueueFull at once where no more may wait. Cancelling leaves the queue.
        """
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait(tenant, size)

    async def _wait(self, tenant: str, size: int) -> None:
        if self.waiting_bytes + size > self._max_waiting:
            raise QueueFull(
                f"{self.num_waiting} requests with {self.waiting_bytes} bytes wait to be read, and "
                f"no more than {self._max_waiting} bytes may"
            )
        priority_key = self._clock() + size / self._bytes_per_s
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(priority_key, next(self._numbers), size, granted)
        heapq.heappush(self._queues.setdefault(tenant, []), waiting)
        self.num_waiting += 1
        self.waiting_bytes += size
        try:
            await granted
        except asyncio.CancelledError:
            if (
                granted.done() and not granted.cancelled()
            ):  # the permit was granted in the same moment
                self.release()
            raise
        finally:
            self.num_waiting -= 1
            self.waiting_bytes -= size

    def release(self) -> None:
        """Give a permit back: the next caller that still waits gets it."""
        for waiting in self._in_order():
            if not waiting.granted.done():
                waiting.granted.set_result(None)
                return
        self._num_free += 1

    def _in_order(self) -> Iterator[_Waiting]:
        """Take callers out of the queue, the next one first."""
        while self._queues:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            waiting = heapq.heappop(queue)
            if queue:
                self._queues[tenant] = queue  # behind all others
            yield waiting
