"""A server whose engine is killed answers every request as if nothing had happened."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import psutil
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

FLAGS = ("--dtype", "float32", "--max-num-seqs", "16")
TOKENS = "quire:generation_tokens_total"
PAUSED = ": the engine restarts, the answer goes on"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 200}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
LONG = {"max_tokens": 200, "ignore_eos": True}
BODIES: tuple[tuple[str, dict[str, object]], ...] = (
    ("/v1/completions", {"prompt": "Once upon a time", "temperature": 0, **LONG}),
    ("/v1/completions", {"prompt": "Tom had a red ball", "n": 2, "seed": 7, **LONG}),
    (
        "/v1/completions",
        {"prompt": "The cat", "seed": 3, "frequency_penalty": 0.5, "logprobs": 2, **LONG},
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Tell me a story."}], "seed": 1, **LONG},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Who is it?"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": SCHEMA},
            },
            "seed": 5,
            "max_tokens": 300,
        },
    ),
)


def whole(server: ServerProcess, path: str, body: dict[str, object]) -> list[tuple[str, object]]:
    """The texts of a request that is not streamed, and why each has ended."""
    reply = httpx.post(server.url + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return [
        (choice.get("text") or choice["message"]["content"], choice["finish_reason"])
        for choice in reply.json()["choices"]
    ]


class Stream:
    """Reads a stream in a thread; `comments` are its comment lines."""

    def __init__(self, server: ServerProcess, path: str, body: dict[str, object]) -> None:
        self.comments: list[str] = []
        self.began = threading.Event()
        self.texts: dict[int, str] = {}
        self.ends: dict[int, object] = {}
        self.last = ""
        self._url = server.url + path
        self._body = body | {"stream": True}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120) as reply:
            for line in filter(None, reply.iter_lines()):
                self.last = line
                if line.startswith(":"):
                    self.comments.append(line)
                elif line != "data: [DONE]":
                    self._take(json.loads(line.removeprefix("data: ")))
                self.began.set()

    def _take(self, event: dict[str, list[dict[str, object]]]) -> None:
        assert "error" not in event, event
        for choice in event["choices"]:
            index, delta = choice["index"], choice.get("delta")
            assert isinstance(index, int)
            text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
            self.texts[index] = self.texts.get(index, "") + str(text or "")
            if choice["finish_reason"] is not None:
                self.ends[index] = choice["finish_reason"]

    def choices(self) -> list[tuple[str, object]]:
        self._thread.join(120)
        assert not self._thread.is_alive() and self.last == "data: [DONE]", self.last
        return [(self.texts[index], self.ends[index]) for index in sorted(self.texts)]


@contextmanager
def kill_often(server: ServerProcess, num_kills: int) -> Iterator[None]:
    """Kill the engine whenever it has made some tokens."""

    def kill() -> None:
        for _ in range(num_kills):
            enough = server.metric(TOKENS) + 150
            if not eventually(partial(has_made, server, enough), 20):
                return
            server.engine_process().kill()
            eventually(lambda: server.client.get("/readyz").status_code != 200, 20)
            server.wait_ready()

    killing = threading.Thread(target=kill)
    killing.start()
    yield
    killing.join(120)


def has_made(server: ServerProcess, num_tokens: float) -> bool:
    return server.metric(TOKENS) > num_tokens


@pytest.mark.one_engine
def test_streams_and_whole_answers_are_those_of_an_undisturbed_server() -> None:
    with server_process(*FLAGS) as server, ThreadPoolExecutor(16) as pool:
        expected = [whole(server, path, body) for path, body in BODIES]
        with kill_often(server, 2):
            answers = [pool.submit(whole, server, path, body) for path, body in BODIES]
            streams = [Stream(server, path, body) for path, body in BODIES]
            assert [stream.choices() for stream in streams] == expected
            assert [answer.result() for answer in answers] == expected
        assert server.metric('quire:engine_restarts_total{cause="killed"') >= 1
        assert server.metric("quire:requests_resumed_total") >= 1
        assert server.metric("quire:out_of_service_seconds_count") >= 1
        comments = [comment for stream in streams for comment in stream.comments]
        assert set(comments) == {PAUSED}
        assert server.client.get("/livez").status_code == 200


@pytest.mark.one_engine
def test_probes_tell_of_a_restart_and_the_server_ends_in_the_middle_of_one() -> None:
    with server_process(*FLAGS) as server:
        stream = Stream(server, *BODIES[0])
        assert stream.began.wait(60)
        tokens = server.metric(TOKENS)
        server.engine_process().kill()
        assert eventually(lambda: server.client.get("/readyz").status_code == 503, 10)
        assert server.client.get("/readyz").json() == {"status": "restarting"}
        assert server.client.get("/livez").status_code == 200
        started = server.client.get("/startupz")
        assert (started.status_code, started.json()["status"]) == (503, "restarting")
        assert {"phase", "done", "total"} <= set(started.json()["progress"])
        assert server.metric("quire:engine_restarting") == 1
        assert server.metric(TOKENS) >= tokens
        server.wait_ready()
        stream.choices()
        assert server.metric(TOKENS) >= tokens + 100
        server.engine_process().kill()
        assert eventually(lambda: server.client.get("/readyz").status_code == 503, 10)
        assert server.stop() == 0


@pytest.mark.long  # the starter of engines has tests of its own
@pytest.mark.one_engine
def test_the_process_that_stands_by_forks_every_engine_and_may_be_lost() -> None:
    with server_process(*FLAGS) as server:
        standby = psutil.Process(server.process.pid).children()[0]
        assert standby.name() == "quire-standby" and server.metric(STANDBY) > 0
        assert server.engine_process().ppid() == standby.pid
        first = whole(server, *BODIES[0])
        server.engine_process().kill()
        assert whole(server, *BODIES[0]) == first
        last = server.engine_process()
        assert last.ppid() == standby.pid
        standby.kill()
        assert whole(server, *BODIES[0]) == first, "its engine goes on"
        last.kill()
        assert whole(server, *BODIES[0]) == first
        assert server.metric('quire:engine_restarts_total{cause="killed"') == 2
        assert server.metric(STANDBY) > 0
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert server.stop() == 0
        assert not any(each.is_running() for each in processes)


STANDBY = "quire:engine_standby_process_resident_memory_bytes"
