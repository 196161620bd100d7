"""A server on an inherited socket: whom it lets in, and that its end refuses nobody."""

import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.server.config import HttpLimits, ServerConfig
from tests.long import long_but_for
from tests.server.http.test_drain import slow
from tests.server.served import Served, eventually, hold_after_first_token, plain_config, serving
from tests.tls_files import make_tls_files

IDLE_S = 0.4
BODY = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()


def inherited(idle_s: float = IDLE_S, shutdown_timeout_s: float = 20.0) -> ServerConfig:
    return replace(
        plain_config(),
        is_socket_inherited=True,
        shutdown_timeout_s=shutdown_timeout_s,
        http=HttpLimits(ending_idle_s=idle_s),
    )


def post(body: bytes = BODY, version: str = "1.1", path: str = "/v1/completions") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), 10)


def read_answer(client: socket.socket) -> tuple[int, dict[str, str]] | None:
    """The status and the head of one answer, whose body is read too; None where the end comes."""
    got = b""
    while b"\r\n\r\n" not in got:
        part = client.recv(1)
        if not part:
            assert got == b""
            return None
        got += part
    first, *lines = got.decode().strip().split("\r\n")
    head = dict(line.lower().split(": ", 1) for line in lines)
    num_left = int(head.get("content-length", 0))
    while num_left:
        num_left -= len(client.recv(num_left))
    return int(first.split()[1]), head


def drain(served: Served) -> None:
    served.server.handle_exit(signal.SIGTERM, None)
    assert eventually(lambda: served.server.service.draining)


def ends_the_connection(client: socket.socket) -> bool:
    """Whether an answer comes that is well and says that it is the last, and then the end."""
    answer = read_answer(client)
    assert answer is not None and answer[0] == 200
    return answer[1].get("connection") == "close" and read_answer(client) is None


def has_ended(served: Served) -> bool:
    return not served.server.server_state.connections and served.server.service.cut_off.done()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(inherited()) as running:
        running.client.close()
        yield running


def test_nobody_is_let_in_before_the_models_are_loaded() -> None:
    with serving(inherited(), loaded=False) as served:
        with connect(served) as client:
            client.sendall(post())
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert not served.connections()
            client.settimeout(10)
            served.do(served.engine.starts.set)
            answer = read_answer(client)
            assert answer is not None and answer[0] == 200
            assert "connection" not in answer[1]


def test_a_start_that_lacks_memory_is_tried_again() -> None:
    with serving(inherited(), loaded=False) as served:
        with connect(served) as client:
            client.sendall(post())
            assert eventually(lambda: served.engine.phase == "loading")
            served.engine.lacks_memory = True
            served.do(lambda: served.engine.die("64 GiB are wanted, 1 GiB is there"))
            answer = read_answer(client)
            assert answer is not None and answer[0] == 200
        assert len(served.engines) == 2


def test_a_start_that_lacks_memory_ends_where_the_socket_is_its_own() -> None:
    config = replace(inherited(), is_socket_inherited=False)
    with serving(config, loaded=False) as served:
        assert eventually(lambda: served.engine.phase == "loading")
        served.engine.lacks_memory = True
        served.do(lambda: served.engine.die("64 GiB are wanted, 1 GiB is there"))
        assert eventually(lambda: served.server.service.failure is not None)
        assert len(served.engines) == 1


def test_memory_is_not_waited_for_longer_than_another_drains() -> None:
    class Impatient(ServerConfig):
        predecessor_s = 0.0

    config = inherited()
    fields = {name: getattr(config, name) for name in ServerConfig.__slots__}
    with serving(Impatient(**fields), loaded=False) as served:
        assert eventually(lambda: served.engine.phase == "loading")
        served.engine.lacks_memory = True
        served.do(lambda: served.engine.die("64 GiB are wanted, 1 GiB is there"))
        assert eventually(lambda: served.server.service.failure is not None)


def test_a_request_on_a_kept_connection_is_served_and_ends_it(served: Served) -> None:
    with connect(served) as client:
        client.sendall(post())
        answer = read_answer(client)
        assert answer is not None and "connection" not in answer[1]
        drain(served)
        time.sleep(IDLE_S / 2)
        client.sendall(post())
        assert ends_the_connection(client)
    assert eventually(lambda: has_ended(served))


def test_no_further_connection_is_taken(served: Served) -> None:
    with connect(served) as client:
        client.sendall(post())
        read_answer(client)
        drain(served)
        with pytest.raises(ConnectionError):  # nobody else has this socket
            connect(served)
        client.sendall(post())
        assert ends_the_connection(client)


@pytest.mark.parametrize("used", [True, False], ids=["used", "new"])
def test_an_idle_connection_is_closed_after_a_while(served: Served, used: bool) -> None:
    with connect(served) as client:
        if used:
            client.sendall(post())
            read_answer(client)
        assert eventually(lambda: len(served.connections(client)) == 1)
        began_s = time.monotonic()
        drain(served)
        assert read_answer(client) is None
        assert time.monotonic() - began_s >= IDLE_S
    assert eventually(lambda: has_ended(served))


@pytest.mark.parametrize("place", [1, 30, len(post()) - 5], ids=["begun", "head", "body"])
@long_but_for(["1.1"], "version", ["1.0", "1.1"])
def test_a_request_that_is_half_read_at_the_signal_is_served(
    served: Served, place: int, version: str
) -> None:
    request = post(version=version)
    with connect(served) as client:
        client.sendall(request[:place])
        assert eventually(lambda: len(served.connections(client)) == 1)
        time.sleep(0.05)
        drain(served)
        time.sleep(IDLE_S * 1.5)
        client.sendall(request[place:])
        assert ends_the_connection(client)
    assert eventually(lambda: has_ended(served))


def test_a_stream_that_runs_is_whole_and_the_next_request_is_served(served: Served) -> None:
    body = json.dumps({"prompt": [5, 6], "max_tokens": 20, "stream": True}).encode()
    served.engine.script = slow
    served.do(served.engine.may_step.clear)
    with connect(served) as client:
        client.sendall(post(body))
        head = b""
        while b"\r\n\r\n" not in head:
            served.do(served.engine.may_step.set)
            head += client.recv(1)
        assert b"connection: close" not in head
        drain(served)
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += client.recv(65536)
        assert b"data: [DONE]" in text
        client.sendall(post())
        assert ends_the_connection(client)


def test_pipelined_requests_are_all_served_and_the_last_answer_ends_them(served: Served) -> None:
    served.do(served.engine.may_step.clear)
    with connect(served) as client:
        client.sendall(post() * 2)
        assert eventually(lambda: served.engine.num_unfinished == 1)
        drain(served)
        client.sendall(post())
        time.sleep(0.1)
        served.do(served.engine.may_step.set)
        for _ in range(2):
            answer = read_answer(client)
            assert answer is not None and answer[0] == 200
            assert "connection" not in answer[1]
        assert ends_the_connection(client)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(places), len(data)]
    return [data[first:last] for first, last in zip(bounds, bounds[1:], strict=False)]


@settings(max_examples=8)
@given(
    num_requests=st.integers(1, 4),
    places=st.lists(st.integers(0, 4 * len(post())), max_size=5),
    at=st.integers(0, 5),
)
def test_whatever_is_cut_where_each_request_is_served_until_an_answer_ends_them(
    num_requests: int, places: list[int], at: int
) -> None:
    """Requests sent ahead of their answers, in parts, the signal between any two of them: every
    answer is well, the last alone says that the connection ends, and none follows."""
    parts = cut(post() * num_requests, places)
    with serving(inherited(idle_s=1.0)) as served:
        with connect(served) as client:
            for index, part in enumerate(parts):
                if index == min(at, len(parts) - 1):
                    assert eventually(lambda: len(served.connections(client)) == 1)
                    drain(served)
                client.sendall(part)
                time.sleep(0.002)
            answers = list(iter(lambda: read_answer(client), None))
        assert {status for status, _ in answers} == {200}
        ends = ["connection" in head for _, head in answers]
        assert ends == [False] * (len(answers) - 1) + [True] or not any(ends)
        assert len(answers) == num_requests or ends[-1]


def test_what_takes_longer_than_its_time_is_told() -> None:
    with serving(inherited(shutdown_timeout_s=0.3)) as served:
        hold_after_first_token(served)
        lines: list[str] = []

        def read() -> None:
            body = {"prompt": "x", "max_tokens": 200, "stream": True}
            with httpx.stream("POST", served.url + "/v1/completions", json=body) as reply:
                lines.extend(line for line in reply.iter_lines() if line)

        thread = threading.Thread(target=read)
        thread.start()
        assert eventually(lambda: served.engine.num_unfinished == 1)
        drain(served)
        thread.join(10)
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"


def test_what_would_outlive_the_server_is_refused(served: Served) -> None:
    """A response in the background is asked for again, elsewhere."""
    body = json.dumps({"input": "x", "background": True, "max_output_tokens": 3}).encode()
    with connect(served) as client:
        client.sendall(post())
        read_answer(client)
        drain(served)
        client.sendall(post(body, path="/v1/responses"))
        answer = read_answer(client)
        assert answer is not None and answer[0] == 503
        assert answer[1]["connection"] == "close" and answer[1]["retry-after"]


def test_a_probe_on_a_kept_connection_tells_of_the_drain(served: Served) -> None:
    with connect(served) as client:
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(client) is not None
        drain(served)
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_answer(client)
        assert answer is not None and answer[0] == 503
        assert answer[1]["connection"] == "close"


@long_but_for([False], "has_shaken_hands", [True, False])
def test_connections_over_tls_are_served_too(tmp_path: Path, has_shaken_hands: bool) -> None:
    files = make_tls_files(tmp_path)
    config = replace(
        inherited(idle_s=2.0),
        ssl_certfile=str(files.server_cert),
        ssl_keyfile=str(files.server_key),
    )
    trust = files.client_context()
    with serving(config, trust=trust) as served:
        served.client.close()
        with connect(served) as raw:
            if not has_shaken_hands:
                time.sleep(0.1)  # it is accepted meanwhile
                drain(served)
            with secured(raw, trust) as client:
                if has_shaken_hands:
                    client.sendall(post())
                    assert read_answer(client) is not None
                    drain(served)
                client.sendall(post())
                assert ends_the_connection(client)
        assert eventually(lambda: has_ended(served))


def secured(raw: socket.socket, trust: ssl.SSLContext) -> ssl.SSLSocket:
    return trust.wrap_socket(raw, server_hostname="localhost")
