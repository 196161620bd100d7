"""Large JSON answers are compressed for whoever takes gzip, and nothing else is."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from quire.server.http.compression import MAX_INLINE_BYTES, MIN_BYTES, Compression
from tests.server.served import Served, plain_config, serving

PLAIN = {"accept-encoding": "identity"}
SIZES = st.sampled_from((0, 1, MIN_BYTES - 1, MIN_BYTES, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1))
TYPES = st.sampled_from(
    ("application/json", "application/json; charset=utf-8", "text/event-stream", "text/html")
)


def answered(
    body: bytes, cuts: list[int], headers: dict[str, str], accepts: str | None
) -> list[Message]:
    """What is sent of an answer whose body comes in parts."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
        for begin, end in zip(places, places[1:], strict=False):
            more = end < len(body) or len(places) > 2 and (begin, end) != tuple(places[-2:])
            await send({"type": "http.response.body", "body": body[begin:end], "more_body": more})

    async def receive() -> Message:
        raise AssertionError("nothing is received")

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        accept = [] if accepts is None else [(b"accept-encoding", accepts.encode())]
        await Compression(app)({"type": "http", "headers": accept}, receive, send)

    anyio.run(run)
    return sent


@given(
    size=SIZES,
    cuts=st.lists(st.integers(0, MAX_INLINE_BYTES), max_size=2),
    media_type=TYPES,
    accepts=st.sampled_from((None, "gzip", "br, gzip;q=0.5", "gzip;q=0", "br", "*")),
)
def test_whoever_decodes_gets_the_same(
    size: int, cuts: list[int], media_type: str, accepts: str | None
) -> None:
    body = bytes(index * 7 % 251 for index in range(size))
    given_headers = {"content-type": media_type, "content-length": str(size)}
    head, *parts = answered(body, cuts, given_headers, accepts)
    got = {name.decode(): value.decode() for name, value in head["headers"]}
    sent = b"".join(part["body"] for part in parts)
    takes = accepts is not None and "gzip" in accepts and "q=0" != accepts[-3:]
    may = media_type.startswith("application/json") and size >= MIN_BYTES and not cuts
    assert (got.get("content-encoding") == "gzip") == (may and takes)
    assert (got.get("vary") == "accept-encoding") == may
    assert (gzip.decompress(sent) if may and takes else sent) == body
    assert int(got["content-length"]) == len(sent)
    assert [part["more_body"] for part in parts][-1] is False


def test_what_is_encoded_already_is_left_as_it_is() -> None:
    headers = {"content-type": "application/json", "content-encoding": "br"}
    head, part = answered(b"x" * MIN_BYTES, [], headers, "gzip")
    assert part["body"] == b"x" * MIN_BYTES
    assert (b"content-encoding", b"br") in head["headers"]


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/completions", "/tokenize"])
def test_large_answers_are_compressed(served: Served, path: str) -> None:
    body = {"prompt": [5] * 20, "n": 16, "max_tokens": 40, "logprobs": 5, "ignore_eos": True}
    if path == "/tokenize":
        body = {"prompt": "once upon a time " * 3000}

    def ask(**headers: str) -> httpx.Response:
        if path == "/openapi.json":
            return served.client.get(path, headers=headers)
        return served.client.post(path, json=body, headers=headers)

    small, whole = ask(), ask(**PLAIN)
    assert small.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in whole.headers
    assert small.headers["vary"] == whole.headers["vary"] == "accept-encoding"
    assert int(small.headers["content-length"]) < int(whole.headers["content-length"])
    assert set(small.json()) == set(whole.json())


def test_streams_and_short_answers_are_not_compressed(served: Served) -> None:
    prompt = {"prompt": [5] * 20, "max_tokens": 100, "ignore_eos": True, "n": 8}
    stream = served.complete(**prompt, stream=True)
    assert len(stream.content) > MIN_BYTES
    assert "content-encoding" not in stream.headers and "vary" not in stream.headers
    assert "content-encoding" not in served.complete(prompt="x", max_tokens=1).headers


@pytest.fixture
def for_pages() -> Iterator[Served]:
    with serving(replace(plain_config(), allowed_origins=("https://a.example",))) as served:
        yield served


def test_answers_to_pages_depend_on_both(for_pages: Served) -> None:
    headers = {"origin": "https://a.example"}
    reply = for_pages.client.get("/openapi.json", headers=headers)
    assert reply.headers["content-encoding"] == "gzip"
    vary = {each.strip().lower() for each in reply.headers["vary"].split(",")}
    assert vary == {"accept-encoding", "origin"}
    assert json.loads(reply.text)["openapi"]
