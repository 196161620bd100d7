"""HTTP by hand against a real server: connections asked to go on, of HTTP/1.0, half made, and
broken off. Nothing hangs, and the server serves on.
"""

import json
import socket
import struct
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

WITHIN_S = 30.0
RUNNING, WAITING = "quire:num_requests_running", "quire:num_requests_waiting"
BODY = json.dumps({"prompt": "Once", "max_tokens": 4, "ignore_eos": True}).encode()
LONG = json.dumps(
    {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process() as running:
        yield running


@pytest.fixture(autouse=True)
def serves_on(server: ServerProcess) -> Iterator[None]:
    yield
    assert server.client.post("/v1/completions", content=BODY).status_code == 200
    assert eventually(lambda: server.metrics(RUNNING, WAITING) == [0, 0], WITHIN_S)


def connect(server: ServerProcess) -> socket.socket:
    url = httpx.URL(server.url)
    assert url.port is not None
    return socket.create_connection((url.host, url.port), timeout=WITHIN_S)


def head(*lines: str, version: str = "1.1") -> bytes:
    start = f"POST /v1/completions HTTP/{version}"
    return "\r\n".join((start, "host: localhost", *lines, "", "")).encode()


def whole(body: bytes = BODY, *lines: str, version: str = "1.1") -> bytes:
    return head(f"content-length: {len(body)}", *lines, version=version) + body


class Answers:
    """The answers of one connection, one after another."""

    def __init__(self, raw: socket.socket) -> None:
        self._file = raw.makefile("rb")

    def next(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        return status, headers, self._file.read(int(headers.get("content-length", 0)))

    def rest(self) -> bytes:
        return self._file.read()


def test_a_client_is_told_to_go_on_and_does(server: ServerProcess) -> None:
    with connect(server) as raw:
        answers = Answers(raw)
        raw.sendall(head(f"content-length: {len(BODY)}", "expect: 100-continue"))
        assert answers.next()[0] == 100
        raw.sendall(BODY)
        assert answers.next()[0] == 200
    with connect(server) as raw:
        raw.sendall(head(f"content-length: {1 << 40}", "expect: 100-continue"))
        assert Answers(raw).next()[0] == 413


def test_http_1_0_is_spoken(server: ServerProcess) -> None:
    with connect(server) as raw:
        raw.sendall(whole(BODY, version="1.0"))
        answers = Answers(raw)
        assert answers.next()[0] == 200
        assert answers.rest() == b""
    with connect(server) as raw:
        raw.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert b'"alive"' in Answers(raw).rest()
    stream = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with connect(server) as raw:
        raw.sendall(whole(stream, version="1.0"))
        assert Answers(raw).rest().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("resets", [True, False])
def test_half_requests_and_resets_leave_nothing_behind(server: ServerProcess, resets: bool) -> None:
    """Each request is broken off at every place of its head and body, and within its answer."""
    sent = whole(LONG)
    places = [*range(0, len(sent), 7), len(sent) - 1, len(sent)]
    for place in places:
        raw = connect(server)
        raw.sendall(sent[:place])
        if place == len(sent):
            assert raw.recv(1)
        if resets:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()


def test_a_client_that_shuts_its_sending_half_is_gone(server: ServerProcess) -> None:
    with connect(server) as raw:
        raw.sendall(whole(LONG))
        assert raw.recv(1)
        raw.shutdown(socket.SHUT_WR)
        assert Answers(raw).rest() is not None
