"""One HTTP exchange, recorded raw: while a load runs, bytes are only stamped with their time.

The client shares its cores with the server it measures, so nothing is parsed here; see replies.py.
Each request has a connection of its own, because some peers drop idle connections under load.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple

HOST = "127.0.0.1"
LAST_CHUNK = b"0\r\n\r\n"


class Read(NamedTuple):
    """Bytes and the time they were read, in seconds of time.perf_counter()."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that came back for one request; `failure` says why it did not end well."""

    start_s: float
    end_s: float
    reads: tuple[Read, ...]
    failure: str | None


@dataclass(slots=True)
class ReplyRecorder(asyncio.Protocol):
    """Stamps what arrives until the last chunk or the end of the connection."""

    ended: asyncio.Future[None]
    reads: list[Read] = field(default_factory=list)

    def data_received(self, data: bytes) -> None:
        """Stamp, and end the exchange on the last chunk rather than on the later close."""
        self.reads.append(Read(time.perf_counter(), data))
        if data.endswith(b"\r\n" + LAST_CHUNK) or data == LAST_CHUNK:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed the connection, or it broke: replies.py tells which by the bytes."""
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def post_request(path: str, body: bytes) -> bytes:
    """The bytes of a POST of JSON, ready before the clock starts."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def exchange(port: int, request: bytes, deadline_s: float) -> Exchange:
    """Send one request and record its reply; deadline_s is on the clock of time.perf_counter()."""
    loop = asyncio.get_running_loop()
    recorder = ReplyRecorder(loop.create_future())
    start_s = time.perf_counter()
    failure = None
    try:
        async with asyncio.timeout(max(deadline_s - start_s, 0)):
            transport, _ = await loop.create_connection(lambda: recorder, HOST, port)
            try:
                transport.write(request)
                await recorder.ended
            finally:
                transport.abort()
    except (OSError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
    return Exchange(start_s, time.perf_counter(), tuple(recorder.reads), failure)
