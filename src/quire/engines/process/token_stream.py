"""The deltas of one request on their way from the engine to whoever reads them.

A stream ends exactly once, whatever happens to the engine: with its finish, with `RequestRefused`,
or with `EngineDown`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from quire.scheduler.step import Delta, Refusal


class RequestRefused(Exception):
    """The scheduler did not accept the request; `refusal` has the reason and the numbers."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineDown(Exception):
    """The engine process has ended or could not start; the text is for people."""


class TokenStream:
    """The deltas of one submitted request: `async for delta in stream`.

    Iteration ends after the delta that has a finish; it raises RequestRefused if the request is not
    `accepted`, and EngineDown if it cannot go on. `on_pause` is called when an engine has ended and
    another is to go on, `on_end` when the last delta is there, or none is to come.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_accepted = False
        self._deltas: deque[Delta] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._refusal: Refusal | None = None
        self._down_reason: str | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None

    async def accepted(self) -> None:
        """Wait until the scheduler has accepted the request. Raises RequestRefused or
        EngineDown."""
        while not self.is_accepted:
            await self._more()

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._ended:
                raise StopAsyncIteration
            await self._more()
        return self._deltas.popleft()

    async def _more(self) -> None:
        """Wait until something changes. Raises RequestRefused or EngineDown where nothing will."""
        if self._refusal is not None:
            raise RequestRefused(self._refusal)
        if self._down_reason is not None:
            raise EngineDown(self._down_reason)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def accept(self) -> None:
        """Record that the scheduler has accepted the request; called by the supervisor."""
        self.is_accepted = True
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Record that the scheduler has refused the request, which ends the stream."""
        self._refusal = refusal
        self._end()

    def put(self, delta: Delta) -> None:
        """Append the next delta; called by the supervisor."""
        self._deltas.append(delta)
        self._ended = delta.finish is not None
        if self._ended:
            self._end()
        else:
            self._wake()

    def pause(self) -> None:
        """Tell whoever reads that the next delta takes a while; called by the supervisor."""
        if self.on_pause is not None:
            self.on_pause()

    def fail(self, down_reason: str) -> None:
        """Record that the engine is down, which ends the stream."""
        self._down_reason = down_reason
        self._end()

    def _end(self) -> None:
        if self.on_end is not None:
            self.on_end()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def merge(
    streams: Sequence[AsyncIterator[Delta]],
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield the deltas of all streams, each with its stream's index; the first error ends it."""
    if len(streams) == 1:
        async for delta in streams[0]:
            yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, Delta] | None] = asyncio.Queue()

    async def pump(index: int, stream: AsyncIterator[Delta]) -> None:
        try:
            async for delta in stream:
                queue.put_nowait((index, delta))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(index, each)) for index, each in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if item is not None:
                yield item
                continue
            num_open -= 1
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
