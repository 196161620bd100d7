"""Bodies that come slowly, or never whole: refused, counted, and forgotten."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from quire.server.config import HttpLimits, ServerConfig
from tests.server.served import Served, eventually, plain_config, serving

KIB = 1024


def bounded(max_body_bytes: int, max_half_read_bytes: int) -> ServerConfig:
    return replace(
        plain_config(), max_body_bytes=max_body_bytes, max_half_read_bytes=max_half_read_bytes
    )


@contextmanager
def sending(served: Served, declared: int, body: bytes) -> Iterator[socket.socket]:
    """A request of which so much of the body has been sent."""
    host, port = served.url.removeprefix("http://").split(":")
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % declared
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(head + body)
        yield sock


def answer(sock: socket.socket) -> tuple[int, str, bytes]:
    """Status, code and head."""
    reply = sock.recv(65536)
    while b"}}" not in reply:
        reply += sock.recv(65536)
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"], head


def half_read(served: Served) -> float:
    return served.metric("quire:http_half_read_bytes")


@pytest.mark.parametrize("num_at_once", [1, 10_000], ids=["from the start", "after much"])
def test_a_body_that_trickles_is_refused(num_at_once: int) -> None:
    """Though something comes all the time, and whatever has come before."""
    limits = HttpLimits(min_body_rate=KIB, body_window_s=0.5)
    config = replace(plain_config(), http=limits)
    with serving(config) as served, sending(served, 10**6, b" " * num_at_once) as sock:
        deadline = time.monotonic() + 10
        sock.settimeout(0.05)
        while time.monotonic() < deadline:
            try:
                assert answer(sock)[:2] == (408, "request_timeout")
                break
            except TimeoutError:
                sock.sendall(b" ")
        else:
            pytest.fail("the body was waited for")
        assert eventually(lambda: half_read(served) == 0)


def test_a_body_at_the_least_rate_is_waited_for() -> None:
    """For many windows; the rate is so small that no pause of the machine falls below it."""
    limits = HttpLimits(min_body_rate=1, body_window_s=1.0)
    body = b'{"prompt": "' + b"a" * 48 + b'"}'
    with serving(replace(plain_config(), http=limits)) as served:
        with sending(served, len(body), b"") as sock:
            for at in range(len(body)):
                sock.sendall(body[at : at + 1])
                time.sleep(0.05)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_half_sent_bodies_are_bounded_together_and_the_oldest_goes_first() -> None:
    reason = 'quire:http_refused_total{model_name="test-model",reason="body_memory_full"}'
    with serving(bounded(100 * KIB, 250 * KIB)) as served, ExitStack() as stack:
        held = []
        for number in range(1, 8):
            held.append(stack.enter_context(sending(served, 100 * KIB, b"a" * (50 * KIB))))
            expected = min(number, 5) * 50 * KIB
            assert eventually(lambda: half_read(served) == expected)  # noqa: B023
        for sock in held[:2]:
            status, code, head = answer(sock)
            assert (status, code) == (503, "body_memory_full") and b"\r\nretry-after: " in head
        assert served.metric(reason) == 2
        reply = served.client.post("/tokenize", json={"prompt": "a" * 200})
        assert reply.status_code == 200  # a usual request finds its way
        held[-1].sendall(b"a" * (50 * KIB))
        assert answer(held[-1])[0] == 400  # whole, and no JSON
        assert answer(held[2])[0] == 503
        assert half_read(served) == 150 * KIB


def test_a_body_given_up_half_way_is_forgotten_though_its_client_stays() -> None:
    with serving(bounded(100 * KIB, 100 * KIB)) as served:
        with sending(served, 100 * KIB, b"a" * (90 * KIB)) as first:
            assert eventually(lambda: half_read(served) == 90 * KIB)
            with sending(served, 100 * KIB, b"a" * (60 * KIB)) as second:
                assert answer(first)[0] == 503
                assert half_read(served) == 60 * KIB
                (connection,) = served.connections(first)
                assert not connection.cycle.body
                first.sendall(b"a" * (10 * KIB) + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert first.recv(65536).startswith(b"HTTP/1.1 200")
                second.sendall(b"a")
                assert eventually(lambda: half_read(served) == 60 * KIB + 1)
            assert eventually(lambda: half_read(served) == 0)
