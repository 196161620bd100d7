"""Spreads what comes at once: one piece of work in each iteration of the event loop."""

import asyncio
from collections.abc import Callable

from quire.server.http.fair_queue import FairQueue


class LoopThrottle:
    """Lets one caller go on in each iteration of the running event loop, tenants in rotation.

    The loop runs all that is ready before it looks at its sockets and timers again: a thousand
    requests that came together would hold everyone else up until each of them is done.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._queue = FairQueue(1, max_waiting=0, bytes_per_s=1, clock=clock)

    async def wait(self, tenant: str) -> None:
        """Return in an iteration of the loop in which no other caller has returned."""
        await self._queue.acquire(tenant, 0)
        asyncio.get_running_loop().call_soon(self._queue.release)
