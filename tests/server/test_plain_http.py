"""What real HTTP clients send beside plain requests."""

import json
import socket
import time

import pytest

from tests.server.served import Served, eventually, plain_config, serving


def exchange(served: Served, data: bytes) -> bytes:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(data)
        reply = b""
        while part := sock.recv(65536):
            reply += part
        return reply


def post(*headers: str) -> bytes:
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_passed_over(served: Served, protocol: str) -> None:
    reply = exchange(served, post("Connection: Upgrade", f"Upgrade: {protocol}"))
    assert reply.startswith(b"HTTP/1.1 200")
    assert b'"finish_reason":"length"' in reply


def test_a_head_without_end_is_refused(served: Served) -> None:
    reply = exchange(served, post(*(f"X-{index}: {'a' * 1000}" for index in range(100))))
    assert reply.startswith(b"HTTP/1.1 400")


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
