"""Reads server-sent events as their bytes come.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, without `id` and `retry`,
which no server asked here uses.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

MAX_LINE_BYTES = 2**24
"""A line that is longer comes from no server that means well."""


class BadStream(Exception):
    """The bytes are no stream of events; the text is for people."""


class ServerEvent(NamedTuple):
    """One event; `name` is empty where the server gave none."""

    name: str
    data: bytes


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """Yield the events of a stream as each is whole. Raises BadStream for a line without end."""
    name, data = "", list[bytes]()
    async for line in _lines(chunks):
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                name = value.decode(errors="replace")
            elif field == b"data":
                data.append(value)
            continue
        if data:
            yield ServerEvent(name, b"\n".join(data))
        name, data = "", []


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines. They end at a line feed alone, since JSON may hold other ends of lines."""
    begun, num_begun = list[bytes](), 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join((*begun, end)).removesuffix(b"\r")
            begun, num_begun = [], 0
        begun.append(rest)
        num_begun += len(rest)
        if num_begun > MAX_LINE_BYTES:
            raise BadStream(f"a line of the stream is over {MAX_LINE_BYTES} bytes")
