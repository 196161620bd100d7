"""Reads the bodies of requests: each has a largest size and a least rate, and all that are half
read have a largest size together. What is refused is forgotten at once.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import ClientDisconnect, Request

from quire.server.config import HttpLimits, ServerConfig
from quire.server.errors import (
    TOO_LARGE,
    TOO_SLOW,
    UNSUPPORTED_MEDIA,
    Overloaded,
    RequestError,
    ShuttingDown,
)

MAX_SHOWN_CHARS = 128


@dataclass(slots=True, eq=False)
class PartialBody:
    """A body that is being read; `error` is why it is given up."""

    reading: asyncio.Task[bytes] | None = None
    data: bytearray = field(default_factory=bytearray)
    error: RequestError | None = None


class BodyCounts(Protocol):
    """Counts of bodies: the bytes of those that are half read, and the refused by their error's
    code."""

    num_half_read_bytes: int

    def on_refused(self, reason: str) -> None: ...


class BodyReader:
    """Reads the bodies of all requests of a server, inside its event loop."""

    def __init__(
        self, config: ServerConfig, counts: BodyCounts, cut_off: asyncio.Future[None]
    ) -> None:
        self._max_together = config.max_half_read_bytes
        self._limits = config.http
        self._counts = counts
        self._cut_off = cut_off
        self._half_read: dict[PartialBody, None] = {}  # the oldest first

    @property
    def num_reading(self) -> int:
        return len(self._half_read)

    async def read(self, request: Request, max_bytes: int) -> bytes:
        """Return the whole body.

        Raises RequestError for a body that is larger than `max_bytes`, before all of it has come;
        that comes too slowly; that is compressed; or that has not come when the server must stop,
        or when others need its memory.
        """
        body = PartialBody()
        body.reading = asyncio.ensure_future(self._read(request, body, max_bytes))
        self._half_read[body] = None

        def stop(_: asyncio.Future[None]) -> None:
            self._give_up(body, ShuttingDown())

        self._cut_off.add_done_callback(stop)
        try:
            return await body.reading
        except asyncio.CancelledError:
            if body.error is None:
                raise
            raise body.error from None
        except RequestError as error:
            self._counts.on_refused(error.code)
            raise
        finally:
            self._cut_off.remove_done_callback(stop)
            body.reading.cancel()
            body.reading = None  # its error holds what holds this body
            self._forget(body)

    def _give_up(self, body: PartialBody, error: RequestError) -> None:
        body.error = error
        self._forget(body)
        if body.reading is not None:
            body.reading.cancel()

    def _forget(self, body: PartialBody) -> None:
        if self._half_read.pop(body, body) is None:
            self._counts.num_half_read_bytes -= len(body.data)
        body.data = bytearray()  # an error's traceback would keep it

    async def _read(self, request: Request, body: PartialBody, max_bytes: int) -> bytes:
        error = await self._receive(request, body, max_bytes)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback would hold it, and what was read
        refuse_compressed(request)
        return bytes(body.data)

    async def _receive(
        self, request: Request, body: PartialBody, max_bytes: int
    ) -> RequestError | None:
        """Read into `body`. Return the error if it cannot be read, None if it was."""
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > max_bytes:
            return _too_large(max_bytes)
        window_s = self._limits.body_window_s
        min_bytes = self._limits.min_body_rate * window_s
        due_bytes = min_bytes  # that must have come when the window ends
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(window_s) as window:
                async for part in request.stream():
                    if len(body.data) + len(part) > max_bytes:
                        return _too_large(max_bytes)
                    self._take(body, part)
                    if len(body.data) >= due_bytes:
                        due_bytes = len(body.data) + min_bytes
                        window.reschedule(clock() + window_s)
        except TimeoutError:
            return too_slow(len(body.data), self._limits)
        except ClientDisconnect:
            message = "The client went away while it sent the body."
            return RequestError(message, code="client_gone")
        return None

    def _take(self, body: PartialBody, part: bytes) -> None:
        body.data += part
        self._counts.num_half_read_bytes += len(part)
        while self._counts.num_half_read_bytes > self._max_together:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Refuse the body that has been coming for longest.

        Bodies that come at a usual rate do not get old; a client that holds many back loses them
        first.
        """
        oldest = next(each for each in self._half_read if each.data)
        self._counts.on_refused("body_memory_full")
        self._give_up(
            oldest,
            Overloaded(
                f"The half-sent bodies of all requests are over {self._max_together} bytes "
                "(--max-half-read-bytes), and this one has been coming for longest. Try again.",
                None,
                code="body_memory_full",
            ),
        )


def too_slow(num_bytes: int, limits: HttpLimits) -> RequestError:
    """Return the error for a body of which so many bytes have come, and then too few."""
    return RequestError(
        f"The body comes too slowly: {num_bytes} bytes so far, and less than "
        f"{limits.min_body_rate} a second in the last {limits.body_window_s:g} s.",
        code="request_timeout",
        status=TOO_SLOW,
    )


def refuse_compressed(request: Request) -> None:
    """Raise RequestError for a body that is compressed."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise RequestError(
            f"The request body has the Content-Encoding {encoding[:MAX_SHOWN_CHARS]!r}; send it "
            "uncompressed.",
            code="unsupported_content_encoding",
            status=UNSUPPORTED_MEDIA,
        )


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"The request body is larger than {max_bytes} bytes, the limit of this server.",
        code="request_too_large",
        status=TOO_LARGE,
    )
