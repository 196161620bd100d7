"""What one client sends, or does not read, is bounded while it happens, and told in one answer."""

import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.config import HttpLimits, ServerConfig
from tests.long import long_but_for
from tests.profiles import cases
from tests.server.scripted_engine import repeat_prompt
from tests.server.served import Served, eventually, plain_config, serving

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST_GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
MAX_WAITING = 64
"""Requests of one connection that may wait in parsed form: those of a kilobyte."""


def with_limits(limits: HttpLimits) -> ServerConfig:
    return replace(plain_config(), http=limits)


@contextmanager
def connected(served: Served, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(10)
        sock.connect((host, int(port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def read_all(sock: socket.socket) -> bytes:
    reply = b""
    while part := sock.recv(65536):
        reply += part
    return reply


def exchange(served: Served, *parts: bytes) -> bytes:
    with connected(served) as sock:
        for part in parts:
            sock.sendall(part)
        return read_all(sock)


def statuses(replies: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", replies)]


def only_error(reply: bytes) -> dict[str, str]:
    """Of one answer that says it is the last."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert statuses(reply) == [int(head[9:12])] and b"\r\nconnection: close" in head
    error: dict[str, str] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


ENDLESS = {
    "URL": (b"GET /", b"a" * 4096, 414, "uri_too_long"),
    "name": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a" * 4096, 431, "head_too_large"),
    "value": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"a" * 4096, 431, "head_too_large"),
    "lines": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a:b\r\n" * 99, 431, "head_too_large"),
    "extension": (CHUNKED + b"1;", b"a" * 4096, 431, "head_too_large"),
    "trailer": (CHUNKED + b"0\r\nX: ", b"a" * 4096, 431, "head_too_large"),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 99, 431, "head_too_large"),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("size", [1, 333, 4096, 1 << 18])
def test_what_has_no_end_is_refused_as_it_comes(served: Served, kind: str, size: int) -> None:
    """However it is cut, and though nothing of it is ever complete."""
    start, more, status, code = ENDLESS[kind]
    data = start + more * ((1 << 18) // len(more))
    if size == 1:
        data = data[: 70 * 1024]
    with connected(served) as sock:
        try:
            for at in range(0, len(data), size):
                sock.sendall(data[at : at + size])
        except ConnectionError:
            pytest.fail("the connection was reset before the answer could be read")
        reply = read_all(sock)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert only_error(reply)["code"] == code


def test_refusals_are_counted(served: Served) -> None:
    line = 'quire:http_refused_total{model_name="test-model",reason="head_too_large"}'
    exchange(served, b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000)
    before = served.metric(line)
    exchange(served, b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000)
    assert served.metric(line) == before + 1


def test_refusals_are_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """By their code alone: there is no request yet whose path and id a line could have."""
    with caplog.at_level("INFO", logger="quire.access"):
        exchange(served, b"SECRET\r\n\r\n")
        assert "connection ended, error_code=" in caplog.text
    assert "SECRET" not in caplog.text


def test_large_heads_within_the_limit_are_read_one_after_the_other(served: Served) -> None:
    """What one head has taken of the limit is not counted for the next."""
    large = GET[:-2] + b"X: " + b"a" * 60_000 + b"\r\n\r\n"
    chunks = CHUNKED + b"1\r\n \r\n" * 30_000 + b"0\r\n\r\n"
    replies = exchange(served, large * 5 + chunks + large + LAST_GET)
    assert statuses(replies) == [200] * 5 + [400, 200, 200]


def post(path: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


REQUESTS = {
    "get": (GET, 200),
    "offer": (GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    "nowhere": (post(b"/nowhere", b"x" * 100_000), 404),
    "small": (post(b"/tokenize", b'{"prompt": "x"}'), 200),
    "large": (post(b"/tokenize", b" " * 300_000 + b'{"prompt": "x"}'), 200),
    "chunks": (CHUNKED + b'5\r\n{"pro\r\na\r\nmpt": "x"}\r\n' + b"0\r\n\r\n", 200),
    "many chunks": (CHUNKED + b"1\r\n \r\n" * 30_000 + b"0\r\nTrailer: x\r\n\r\n", 400),
    "too large": (post(b"/tokenize", b" " * 400_001), 413),
}


@pytest.fixture(scope="module")
def small_bodies() -> Iterator[Served]:
    with serving(replace(plain_config(), max_body_bytes=400_000)) as served:
        yield served


@cases(50)
@given(
    st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=8),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=5),
)
def test_requests_of_one_connection_are_answered_in_turn(
    small_bodies: Served, kinds: list[str], sizes: list[int]
) -> None:
    """Whatever they are, and however what is sent is cut."""
    data = b"".join(REQUESTS[kind][0] for kind in kinds) + LAST_GET
    with connected(small_bodies) as sock:
        sender = threading.Thread(target=send_cut, args=(sock, data, sizes))
        sender.start()
        replies = read_all(sock)
        sender.join()
    assert statuses(replies) == [*(REQUESTS[kind][1] for kind in kinds), 200]


def send_cut(sock: socket.socket, data: bytes, sizes: list[int]) -> None:
    rounds = itertools.cycle(sizes)
    while data:
        size = max(next(rounds), len(data) // 500)
        sock.sendall(data[:size])
        data = data[size:]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_any_number_of_offers_to_upgrade_is_passed_over(served: Served, protocol: bytes) -> None:
    offer = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
    assert statuses(exchange(served, offer * 3000 + LAST_GET)) == [200] * 3001


def test_an_offer_of_http_1_0_stays_http_1_0(served: Served) -> None:
    offer = b"GET /livez HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert b"\r\nconnection: close\r\n" in exchange(served, offer)


def test_pipelined_requests_wait_in_the_socket(served: Served) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    served.do(served.engine.may_step.clear)
    try:
        with connected(served) as sock:
            sock.sendall(head % len(body) + body + GET * 5000 + LAST_GET)
            assert eventually(lambda: served.engine.num_unfinished == 1)
            served.client.get("/livez")
            assert max(len(each.pipeline) for each in served.connections()) <= MAX_WAITING
            served.do(served.engine.may_step.set)
            assert statuses(read_all(sock)) == [200] * 5002
    finally:
        served.do(served.engine.may_step.set)


MALFORMED = {
    "no method": b"NONSENSE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "NUL": b"\x00\x00\x00\x00\r\n\r\n",
    "NUL in URL": b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "NUL in value": GET[:-2] + b"X: a\x00b\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/0.9": b"GET /livez\r\n\r\n",
    "HTTP/2": b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /livez HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no Host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two Hosts": GET[:-2] + b"Host: localhost\r\n\r\n",
    "line feeds alone": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "carriage return alone": GET[:-2] + b"X: a\rb\r\n\r\n",
    "folded value": GET[:-2] + b"X: a\r\n b\r\n\r\n",
    "space in name": GET[:-2] + b"X : a\r\n\r\n",
    "no URL": b"GET http://:/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "negative length": CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: -3"),
    "length no number": CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: many"),
    "length too long": CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 1" * 30),
    "two lengths": CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 3\r\n" * 2),
    "length and chunks": CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunks and length": CHUNKED.replace(b"Trans", b"Content-Length: 3\r\nTrans") + b"3\r\nabc",
    "misspelt encoding": CHUNKED.replace(b"chunked", b"chunkd"),
    "unknown encoding": CHUNKED.replace(b"chunked", b"gzip, chunked"),
    "chunked not last": CHUNKED.replace(b"chunked", b"chunked, gzip"),
    "chunk size no number": CHUNKED + b"zz\r\n",
    "chunk size negative": CHUNKED + b"-1\r\n",
    "chunk size too large": CHUNKED + b"f" * 20 + b"\r\n",
    "chunk longer than said": CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
    "second chunk bad": CHUNKED + b"2\r\nab\r\nx\r\n",
    "NUL after chunks": CHUNKED + b"0\r\n\x00\r\n\r\n",
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_is_no_http_gets_one_error_and_the_connection_ends(served: Served, kind: str) -> None:
    """In one piece, byte by byte, and behind requests, whose answers come first."""
    data = MALFORMED[kind]
    for parts in ([data], [data[at : at + 1] for at in range(len(data))]):
        error = only_error(exchange(served, *parts))
        assert error["code"] == "invalid_http" and error["message"]
    replies = exchange(served, GET * 3 + data + GET)
    assert statuses(replies) == [200, 200, 200, 400]


def test_what_is_no_http_does_not_end_a_generation_before_it(served: Served) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    served.do(served.engine.may_step.clear)
    try:
        with connected(served) as sock:
            sock.sendall(post % len(body) + body)
            assert eventually(lambda: served.engine.num_unfinished == 1)
            sock.sendall(CHUNKED + b"zz\r\n")
            served.client.get("/livez")
            served.do(served.engine.may_step.set)
            replies = read_all(sock)
    finally:
        served.do(served.engine.may_step.set)
    assert statuses(replies) == [200, 400] and b'"finish_reason":"length"' in replies


def post_stream(num_tokens: int) -> bytes:
    body = json.dumps(
        {"prompt": "x", "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@long_but_for(
    [(1, 240), (20, 60)], "num_requests, num_tokens", itertools.product([1, 20], [60, 240])
)
def test_an_answer_that_nobody_reads_ends_the_connection(
    num_tokens: int, num_requests: int
) -> None:
    """Whether it is finished or not; nothing of it stays in the engine."""
    limits = with_limits(HttpLimits(write_timeout_s=0.3, keep_alive_s=0.3))
    with serving(limits, send_buffer=2048) as served, connected(served, 2048) as sock:
        served.engine.script = repeat_prompt
        sock.sendall(post_stream(num_tokens) * num_requests)
        assert eventually(lambda: bool(served.engine.submitted))
        assert eventually(
            lambda: served.engine.num_unfinished == 0 and not served.connections(sock), 20
        )


def test_a_slow_reader_is_waited_for() -> None:
    with serving(with_limits(HttpLimits(write_timeout_s=2)), send_buffer=2048) as served:
        with connected(served, 2048) as sock:
            sock.sendall(post_stream(240) + LAST_GET)
            reply = b""
            while part := sock.recv(2048):
                reply += part
        assert b"data: [DONE]" in reply and statuses(reply) == [200, 200]


def test_the_rest_of_a_refused_body_is_not_taken_for_ever() -> None:
    with serving(replace(with_limits(HttpLimits(discard_s=0.3)), max_body_bytes=100)) as served:
        with connected(served) as sock:
            sock.sendall(CHUNKED + b"80\r\n" + b"a" * 128 + b"\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 413")
            with pytest.raises(ConnectionError):
                while True:
                    sock.sendall(b"1\r\na\r\n")


def test_after_a_refused_body_the_connection_serves_on() -> None:
    with serving(replace(plain_config(), max_body_bytes=100)) as served:
        body = CHUNKED + b"80\r\n" + b"a" * 128 + b"\r\n0\r\n\r\n"
        assert statuses(exchange(served, body + LAST_GET)) == [413, 200]
