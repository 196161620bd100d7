"""Records one HTTP exchange raw: while a load runs, bytes are only stamped with their time.

The client may share its cores with the server it measures, so nothing is parsed here; see
`replies.py`. Each request has a connection of its own, because some servers drop idle connections
under load. Proxies are not used.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

LAST_CHUNK = b"0\r\n\r\n"
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server listens at this address; `prefix` stands before every path, `tls` is None for plain
    HTTP."""

    host: str
    port: int
    prefix: str = ""
    tls: ssl.SSLContext | None = None

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host_header}{self.prefix}"


def parse_address(url: str) -> ServerAddress:
    """Return the address of a base URL, with or without `/v1`. ValueError says what is wrong with
    it."""
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"expected a URL such as http://localhost:8000, got {url!r}")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("a base URL has no user, query or fragment")
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise ValueError(f"a URL has printable ASCII only, got {url!r}")
    return ServerAddress(
        host=parts.hostname,
        port=parts.port or DEFAULT_PORTS[parts.scheme],
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        tls=ssl.create_default_context() if parts.scheme == "https" else None,
    )


class TimedBytes(NamedTuple):
    """Bytes and the time they were read, in seconds of time.perf_counter()."""

    at_s: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that came back for one request; `failure` says why it did not end well."""

    start_s: float
    end_s: float
    reads: tuple[TimedBytes, ...]
    failure: str | None


@dataclass(slots=True)
class ReplyRecorder(asyncio.Protocol):
    """Stamps what arrives, until the last chunk or the end of the connection."""

    ended: asyncio.Future[None]
    reads: list[TimedBytes] = field(default_factory=list)

    def data_received(self, data: bytes) -> None:
        """Stamp data; end the exchange on the last chunk rather than on the later close."""
        self.reads.append(TimedBytes(time.perf_counter(), data))
        if data.endswith(b"\r\n" + LAST_CHUNK) or data == LAST_CHUNK:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: the server closed the connection, or it broke, as the bytes will
        show."""
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def build_request(
    address: ServerAddress, path: str, body: bytes | None = None, api_key: str | None = None
) -> bytes:
    """Return the bytes of a POST of JSON, or of a GET without a body: made before the clock
    starts."""
    lines = [
        f"{'GET' if body is None else 'POST'} {address.prefix}{path} HTTP/1.1",
        f"Host: {address.host_header}",
        "Accept-Encoding: identity",
        "Connection: close",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if api_key is not None:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def exchange(address: ServerAddress, request: bytes, deadline_s: float) -> Exchange:
    """Send one request and record its reply; deadline_s is on the clock of time.perf_counter()."""
    loop = asyncio.get_running_loop()
    recorder = ReplyRecorder(loop.create_future())
    start_s = time.perf_counter()
    failure = None
    try:
        async with asyncio.timeout(max(deadline_s - start_s, 0)):
            transport, _ = await loop.create_connection(
                lambda: recorder, address.host, address.port, ssl=address.tls
            )
            try:
                transport.write(request)
                await recorder.ended
            finally:
                transport.abort()
    except (OSError, TimeoutError) as error:
        failure = f"{type(error).__name__}: {error}"
    return Exchange(start_s, time.perf_counter(), tuple(recorder.reads), failure)
