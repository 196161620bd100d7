"""HTTP/1.1 by hand against a real server: connections that are kept, pipelined, chunked, asked to
go on, of HTTP/1.0, half made, and broken off. Nothing hangs, and the server serves on.
"""

import json
import random
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


def chunked(body: bytes, sizes: list[int], trailer: bytes = b"") -> bytes:
    sent, left = head("transfer-encoding: chunked"), body
    for size in sizes:
        part, left = left[:size], left[size:]
        if part:
            sent += f"{len(part):x};ext=1\r\n".encode() + part + b"\r\n"
    if left:
        sent += f"{len(left):X}\r\n".encode() + left + b"\r\n"
    return sent + b"0\r\n" + trailer + b"\r\n"


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


def tokens(body: bytes) -> int:
    count = json.loads(body)["usage"]["completion_tokens"]
    assert isinstance(count, int)
    return count


def test_a_connection_is_kept(server: ServerProcess) -> None:
    with connect(server) as raw:
        answers = Answers(raw)
        for _ in range(5):
            raw.sendall(whole())
            status, headers, body = answers.next()
            assert (status, tokens(body)) == (200, 4) and "connection" not in headers
        raw.sendall(whole(BODY, "connection: close"))
        status, headers, _ = answers.next()
        assert (status, headers["connection"]) == (200, "close")
        assert answers.rest() == b""


def test_pipelined_requests_are_answered_in_their_order(server: ServerProcess) -> None:
    bodies = [
        json.dumps({"prompt": "Once", "max_tokens": n, "ignore_eos": True}).encode()
        for n in (9, 1, 5)
    ]
    sent = b"".join(map(whole, bodies)) + whole(b"{") + whole(bodies[1])
    for cut in (1, 60, len(sent)):
        with connect(server) as raw:
            for begin in range(0, len(sent), cut):
                raw.sendall(sent[begin : begin + cut])
            answers = Answers(raw)
            assert [tokens(answers.next()[2]) for _ in bodies] == [9, 1, 5]
            assert answers.next()[0] == 400
            assert tokens(answers.next()[2]) == 1


@pytest.mark.parametrize("seed", range(4))
def test_chunks_of_any_size_are_a_body(server: ServerProcess, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(1, 9) for _ in range(20)]
    sent = chunked(BODY, sizes, trailer=b"x-trailer: 1\r\n" if seed % 2 else b"") + whole()
    with connect(server) as raw:
        while sent:
            cut = draw.randint(1, 40)
            raw.sendall(sent[:cut])
            sent = sent[cut:]
        answers = Answers(raw)
        assert [tokens(answers.next()[2]) for _ in range(2)] == [4, 4]


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


def test_who_sends_half_and_waits_is_not_waited_for_by_others(server: ServerProcess) -> None:
    held = [connect(server) for _ in range(100)]
    try:
        for index, raw in enumerate(held):
            raw.sendall(whole(LONG)[: 1 + index])
        assert server.client.post("/v1/completions", content=BODY).status_code == 200
    finally:
        for raw in held:
            raw.close()


def test_a_client_that_shuts_its_sending_half_is_gone(server: ServerProcess) -> None:
    with connect(server) as raw:
        raw.sendall(whole(LONG))
        assert raw.recv(1)
        raw.shutdown(socket.SHUT_WR)
        assert Answers(raw).rest() is not None


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head("content-length: 5", "content-length: 6"),
        head("content-length: -1"),
        head("transfer-encoding: chunked") + b"zz\r\n",
        head("transfer-encoding: gzip, chunked"),
    ],
)
def test_what_is_no_request_gets_one_answer_and_the_end(server: ServerProcess, sent: bytes) -> None:
    with connect(server) as raw:
        raw.sendall(sent)
        answers = Answers(raw)
        status, headers, body = answers.next()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["code"] == "invalid_http"
        assert answers.rest() == b""
