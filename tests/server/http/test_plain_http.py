"""What real HTTP clients send beside plain requests."""

import json
import signal
import socket
import time
from dataclasses import replace

import pytest

from quire.server.config import HttpLimits
from tests.server.served import Served, eventually, plain_config, serving


def exchange(served: Served, *parts: bytes, pause_s: float = 0.001) -> bytes:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            sock.sendall(part)
            time.sleep(pause_s)
        reply = b""
        while part := sock.recv(65536):
            reply += part
        return reply


BODY = json.dumps({"prompt": "x", "max_tokens": 2}).encode()


def post(*headers: str) -> bytes:
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {len(BODY)}",
        *headers,
    ]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + BODY


def error_in(reply: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    return found


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_passed_over(served: Served, protocol: str) -> None:
    reply = exchange(served, post("Connection: Upgrade", f"Upgrade: {protocol}"))
    assert reply.startswith(b"HTTP/1.1 200")
    assert b'"finish_reason":"length"' in reply


def test_an_offer_is_passed_over_however_it_comes(served: Served) -> None:
    """Cut anywhere, and as the second of two requests sent together."""
    offer = post("Connection: Upgrade", "Upgrade: h2c")
    first = offer.replace(b"Connection: close\r\n", b"")
    for place in range(1, len(offer), 7):
        reply = exchange(served, offer[:place], offer[place:])
        assert reply.startswith(b"HTTP/1.1 200") and b'"finish_reason":"length"' in reply
    reply = exchange(served, first + offer)
    assert reply.count(b"HTTP/1.1 200") == reply.count(b'"finish_reason":"length"') == 2


def test_a_head_without_end_is_refused(served: Served) -> None:
    reply = exchange(served, post(*(f"X-{index}: {'a' * 1000}" for index in range(100))))
    assert reply.startswith(b"HTTP/1.1 431")
    assert error_in(reply)["code"] == "head_too_large"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"NONSENSE\r\n\r\n", "invalid_http"),
        (b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n", "invalid_http"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", "method_not_allowed"),
    ],
)
def test_what_is_no_request_is_told_in_the_shape_of_errors(
    served: Served, data: bytes, code: str
) -> None:
    reply = exchange(served, data)
    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert error_in(reply)["code"] == code


@pytest.mark.parametrize(
    ("data", "has_id"),
    [
        (post("X-Request-Id: mine", "Transfer-Encoding: gzip"), True),
        (post("X-Request-Id: mine", *(f"X-{n}: {'a' * 1000}" for n in range(100))), True),
        (post("X-Request-Id: mine", "Transfer-Encoding: chunked") + b"zz", True),
        (post("Transfer-Encoding: gzip"), False),
        (post("X-Request-Id: my own", "Transfer-Encoding: gzip"), False),
        (b"nonsense\r\n\r\n", False),
    ],
)
def test_an_error_has_the_id_of_the_request_at_fault(
    served: Served, data: bytes, has_id: bool
) -> None:
    first = post("X-Request-Id: before").replace(b"Connection: close\r\n", b"")
    told = b"x-request-id: mine\r\n"
    for reply in (exchange(served, data), exchange(served, first + data)):
        head = reply[reply.rindex(b"HTTP/1.1 4") :]
        assert (told in head) == has_id
        assert b"before" not in head


@pytest.mark.parametrize("data", [post()[:30], post()[:-5]], ids=["head", "body"])
def test_what_does_not_come_is_not_waited_for(data: bytes) -> None:
    limits = HttpLimits(head_timeout_s=0.1, body_window_s=0.1)
    with serving(replace(plain_config(), http=limits)) as served:
        reply = exchange(served, data)
    assert reply.startswith(b"HTTP/1.1 408") and b"connection: close" in reply
    assert error_in(reply)["code"] == "request_timeout"


def test_a_connection_that_nobody_uses_is_closed() -> None:
    """Unused from the start, after an answer, and where only line ends come."""
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(replace(plain_config(), http=HttpLimits(keep_alive_s=0.2))) as served:
        assert exchange(served) == b""
        assert exchange(served, b"\r\n") == b""
        assert exchange(served, get).startswith(b"HTTP/1.1 200")
        assert exchange(served, get, b"\r\n", pause_s=0.1).startswith(b"HTTP/1.1 200")


def test_a_body_that_has_not_come_does_not_delay_a_drained_server() -> None:
    with serving(replace(plain_config(), shutdown_timeout_s=20)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(post()[:-5])
            assert eventually(lambda: served.server.service.bodies.num_reading == 1)
            began = time.monotonic()
            served.server.handle_exit(signal.SIGTERM, None)
            assert sock.recv(65536).startswith(b"HTTP/1.1 503")
            assert time.monotonic() - began < 5


def test_a_half_sent_body_does_not_hold_the_end() -> None:
    with serving(plain_config()) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(post()[:-5])
            service = served.server.service
            assert eventually(lambda: service.num_open == 1)
            began = time.monotonic()
            served.do(service.cut)
            assert sock.recv(65536).startswith(b"HTTP/1.1 503")
            assert time.monotonic() - began < 3
