"""A client that reads an answer as it comes, and can be as bad as a client can be: over a plain
socket, since client libraries hide both."""

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from tests.chaos.mix import Ask

READ_BYTES = 1 << 16
PAUSE_S = 0.05
WITHIN_S = 240.0


class Conduct(StrEnum):
    """The ways in which a client behaves: it reads all; it reads little by little; it leaves when
    some of the answer has come; it shuts its sending side when it has asked, and reads on; it ends
    within its own body; it asks and never reads."""

    PLAIN = "plain"
    SLOW = "slow"
    LEAVES = "leaves"
    SHUTS = "shuts"
    BREAKS_OFF = "breaks off"
    DEAF = "deaf"

    @property
    def wants_all(self) -> bool:
        """Whether the client is there until its answer is whole."""
        return self in (Conduct.PLAIN, Conduct.SLOW, Conduct.SHUTS)


@dataclass(slots=True)
class Pulse:
    """The moments at which streams got a token, of all clients together."""

    beats_s: "array[float]" = field(default_factory=lambda: array("d"))

    def beat(self) -> None:
        self.beats_s.append(time.monotonic())


@dataclass(slots=True)
class Reply:
    """An answer as it came: `status` is 0 where none came, `body` what there is of it. The request
    was sent whole where `is_sent`, under the id that is given, if any."""

    ask: Ask
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    fault: str = ""
    request_id: str = ""
    is_sent: bool = False

    @property
    def events(self) -> list[bytes]:
        """The data of each event of a stream. Raises ValueError where a line is neither data nor a
        comment."""
        lines = [line for line in self.body.split(b"\n") if line and not line.startswith(b":")]
        if any(not line.startswith(b"data: ") for line in lines):
            raise ValueError(f"no data: {lines}")
        return [line.removeprefix(b"data: ") for line in lines]

    @property
    def num_comments(self) -> int:
        return sum(line.startswith(b":") for line in self.body.split(b"\n"))


async def exchange(
    url: str, ask: Ask, pulse: Pulse, *, conduct: Conduct = Conduct.PLAIN, request_id: str = ""
) -> Reply:
    """Ask on a connection of its own. What goes wrong is told in the reply, never raised."""
    reply = Reply(ask, request_id=request_id)
    try:
        async with asyncio.timeout(WITHIN_S):
            await _converse(url, reply, pulse, conduct)
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        reply.fault = f"{type(error).__name__}: {error}"
    return reply


async def _converse(url: str, reply: Reply, pulse: Pulse, conduct: Conduct) -> None:
    address, body = urlsplit(url), json.dumps(reply.ask.body).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        named = f"x-request-id: {reply.request_id}\r\n" if reply.request_id else ""
        head = (
            f"POST {reply.ask.path} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{named}\r\n"
        ).encode()
        if conduct is Conduct.BREAKS_OFF:
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            return
        writer.write(head + body)
        await writer.drain()
        reply.is_sent = True
        if conduct is Conduct.SHUTS:
            writer.write_eof()
        if conduct is Conduct.DEAF:
            await asyncio.sleep(PAUSE_S * 10)
            return
        await _read(reader, reply, pulse, conduct)
    finally:
        if reply.is_whole:
            writer.close()
        else:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, reply: Reply, pulse: Pulse, conduct: Conduct) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status, *lines = head.rstrip().split("\r\n")
    reply.status = int(status.split()[1])
    pairs = (line.partition(": ") for line in lines)
    reply.headers = {name.lower(): value for name, _, value in pairs}
    is_stream = reply.ask.is_stream and reply.status == 200
    num_parts = 0
    async for part in _parts(reader, reply.headers):
        reply.body += part
        num_parts += 1
        if is_stream and b"data: {" in part:  # not a comment
            pulse.beat()
        if conduct is Conduct.LEAVES and num_parts == 3:
            return
        if conduct is Conduct.SLOW:
            await asyncio.sleep(PAUSE_S)
    reply.is_whole = True


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """The chunks of a body to its end. Raises EOFError where the connection ends before."""
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers["content-length"]))
        return
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        part = (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return
        yield part
