"""Compresses large JSON answers for clients that take gzip. Streams of events never are: each event
is to go out as it comes."""

import asyncio
import gzip

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.json_responses import JSON
from quire.server.http.negotiation import takes

GZIP = "gzip"
LEVEL = 1
"""Higher levels save little more, and their time is the server's."""
MIN_BYTES = 4 * 1024
"""Measured on a Xeon: a body of 4 KiB takes 24 to 130 us and gets 0.3 to 0.6 of its size, which
pays on links below 100 Mbit/s for prose and 900 for log probabilities; a smaller one is sent in a
packet or two either way."""
MAX_INLINE_BYTES = 32 * 1024
"""A larger body, which takes more than half a millisecond, is compressed in a thread."""


class Compression:
    """A layer of the application: sends answers of JSON that have one body of MIN_BYTES or more
    compressed where the client takes that, and says of all such that it depends on the client."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Answer(scope, send).send)


class _Answer:
    """The answer to one request. Its head is held until its body, or the first part of it, is
    there. The layer is around every event of every stream: what can wait is not done before."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._head: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_plain_json(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            message = await self._compressed(head, message)
            await self._send(head)
        await self._send(message)

    async def _compressed(self, head: Message, message: Message) -> Message:
        """Return the message with its body compressed, and change the head for it, if it is all of
        the body and worth it."""
        body = message.get("body", b"")
        if message.get("more_body") or len(body) < MIN_BYTES:
            return message
        headers = MutableHeaders(scope=head)
        headers.add_vary_header("accept-encoding")
        if not takes(Headers(scope=self._scope).get("accept-encoding", ""), GZIP):
            return message
        if len(body) <= MAX_INLINE_BYTES:
            body = gzip.compress(body, LEVEL)
        else:
            body = await asyncio.to_thread(gzip.compress, body, LEVEL)
        headers["content-encoding"] = GZIP
        headers["content-length"] = str(len(body))
        return {**message, "body": body}


def _is_plain_json(head: Message) -> bool:
    headers: dict[bytes, bytes] = dict(head["headers"])
    is_json = headers.get(b"content-type", b"").partition(b";")[0] == JSON.encode()
    return is_json and b"content-encoding" not in headers
