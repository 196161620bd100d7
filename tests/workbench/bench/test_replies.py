"""Raw exchanges become the right counts, wherever the network cut the bytes."""

import asyncio
import time
from contextlib import suppress

import pytest

from quire.workbench.bench.exchange import (
    Exchange,
    ServerAddress,
    TimedBytes,
    build_request,
    exchange,
)
from quire.workbench.bench.replies import Failure, Reply, parse_reply

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"text":" one","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"text":"","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"text":" two","finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
    b"data: [DONE]\n\n",
)


def chunked(*events: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in (*events, b""))


def exchanged(data: bytes, read_size: int) -> Exchange:
    pieces = [data[start : start + read_size] for start in range(0, len(data), read_size)]
    reads = tuple(TimedBytes(1.0 + index, piece) for index, piece in enumerate(pieces))
    return Exchange(start_s=0.5, end_s=2.0 + len(pieces), reads=reads, failure=None)


@pytest.mark.parametrize("read_size", [1, 7, 10_000])
def test_counts_do_not_depend_on_how_the_bytes_were_read(read_size: int) -> None:
    reply = parse_reply(exchanged(HEAD + chunked(*EVENTS), read_size))
    assert isinstance(reply, Reply)
    assert len(reply.text_times_s) == 2
    assert (reply.num_prompt_tokens, reply.num_output_tokens) == (5, 3)
    assert reply.num_cached_tokens == 4


def test_text_is_timed_by_the_read_that_completed_it() -> None:
    whole = HEAD + chunked(*EVENTS)
    middle = whole.index(b" two")
    reads = (TimedBytes(1.0, whole[:middle]), TimedBytes(2.0, whole[middle:]))
    reply = parse_reply(Exchange(0.5, 3.0, reads, None))
    assert isinstance(reply, Reply)
    assert reply.text_times_s == (1.0, 2.0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEAD + chunked(*EVENTS[:1]), "without"),
        (HEAD + chunked(*EVENTS)[:-7], "middle"),
        (HEAD + chunked(b'data: {"error":{"message":"full"}}\n\n'), "full"),
        (HEAD + chunked(b"data: not json\n\n"), "DecodeError"),
        (b"HTTP/1.1 503 Busy\r\n\r\n" + b"later", "later"),
        (b"HTTP/1.1 200", "head"),
        (b"", "head"),
    ],
)
def test_incomplete_or_refused_reply_is_a_failure(data: bytes, reason: str) -> None:
    failure = parse_reply(exchanged(data, 10_000))
    assert isinstance(failure, Failure)
    assert reason in failure.reason


async def exchange_with(answer: bytes, *, timeout_s: float) -> Exchange:
    """Exchange with a server on loopback that answers so and then keeps the connection open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\nbody")
            writer.write(answer)
            await reader.read()
        writer.close()
        handled.set()

    handled = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        request = build_request(address, "/v1/completions", b"body")
        exchanged = await exchange(address, request, time.perf_counter() + timeout_s)
        with suppress(TimeoutError):  # a deadline may come before the connection
            await asyncio.wait_for(handled.wait(), 10)
        return exchanged


def test_exchange_ends_with_the_last_chunk() -> None:
    reply = parse_reply(asyncio.run(exchange_with(HEAD + chunked(*EVENTS), timeout_s=30)))
    assert isinstance(reply, Reply)
    assert reply.start_s <= reply.text_times_s[0] <= reply.end_s < reply.start_s + 10


def test_exchange_fails_at_its_deadline() -> None:
    failure = parse_reply(asyncio.run(exchange_with(HEAD, timeout_s=0.05)))
    assert isinstance(failure, Failure)
    assert "TimeoutError" in failure.reason
