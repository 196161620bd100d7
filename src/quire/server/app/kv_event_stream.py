"""Serves `GET /v1/kv_events`: the feed as server-sent events, until the client goes or falls
behind, or the server drains.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.apis.openai.response import KEEP_ALIVE, STREAM_HEADERS
from quire.server.errors import RequestError
from quire.server.generation.service import Service
from quire.server.observability.kv_event_feed import KVEventFeed, gap_frame

EVENTS_PER_SEND = 256
_MAX_ID_DIGITS = 18


def last_event_id(request: Request) -> int | None:
    """Return the id in `Last-Event-ID`, None without one. Raises RequestError for what is no id."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MAX_ID_DIGITS):
        raise RequestError("'Last-Event-ID' must be the id of an event.", param="last-event-id")
    return int(given)


class KVEventStream(Response):
    """Streams the events after `last_id`; None: those from now on."""

    def __init__(self, feed: KVEventFeed, service: Service, last_id: int | None) -> None:
        super().__init__()
        self._feed = feed
        self._drains = service.drains
        self._keep_alive_s = service.config.sse_keep_alive_interval_s or None
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = list(STREAM_HEADERS)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        emit = asyncio.create_task(self._emit(send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({emit, gone, self._drains}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            emit.cancel()
            gone.cancel()
            await asyncio.gather(emit, gone, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    async def _emit(self, send: Send) -> None:
        """Send events. It ends where some were lost because the client is slow: the client may come
        back and gets the gap."""
        next_id = self._feed.next_id if self._last_id is None else self._last_id + 1
        await _send(send, KEEP_ALIVE)
        if not self._feed.holds(next_id):
            resumes_at = self._feed.oldest_id
            await _send(send, gap_frame(next_id - 1, resumes_at))
            next_id = resumes_at
        while True:
            reading = self._feed.read(next_id, EVENTS_PER_SEND)
            try:
                frames = await asyncio.wait_for(reading, self._keep_alive_s)
            except TimeoutError:
                await _send(send, KEEP_ALIVE)
                continue
            if not frames:
                await _send(send, gap_frame(next_id - 1, self._feed.oldest_id))
                return
            await _send(send, b"".join(frames))
            next_id += len(frames)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
