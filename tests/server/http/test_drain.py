"""The end of a server: readiness first, running requests next, the rest is told."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx

from tests.server.served import Served, eventually, hold_after_first_token, plain_config, serving


def stream_lines(served: Served, lines: list[str], num_tokens: int) -> threading.Thread:
    def read() -> None:
        body = {"prompt": "x", "max_tokens": num_tokens, "stream": True}
        with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=20) as reply:
            lines.extend(line for line in reply.iter_lines() if line)

    thread = threading.Thread(target=read)
    thread.start()
    assert eventually(lambda: served.engine.num_unfinished == 1)
    return thread


def slow(_: object) -> Iterator[int]:
    while True:
        time.sleep(0.005)
        yield 100


def test_running_requests_finish_and_new_ones_are_refused() -> None:
    with serving(replace(plain_config(), shutdown_timeout_s=20)) as served:
        served.engine.script = slow
        served.do(served.engine.may_step.clear)
        lines: list[str] = []
        thread = stream_lines(served, lines, 20)
        served.server.handle_exit(signal.SIGTERM, None)
        assert eventually(lambda: served.client.get("/readyz").status_code == 503)
        assert served.client.get("/readyz").json() == {"status": "draining"}
        assert served.client.get("/livez").status_code == 200
        reply = served.complete(prompt="x")
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "shutting_down"
        served.do(served.engine.may_step.set)
        thread.join(10)
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"]
        assert eventually(lambda: not listens(served))


def test_out_of_time_is_an_error_event() -> None:
    with serving(replace(plain_config(), shutdown_timeout_s=0.2)) as served:
        hold_after_first_token(served)
        lines: list[str] = []
        thread = stream_lines(served, lines, 240)
        served.server.handle_exit(signal.SIGTERM, None)
        thread.join(10)
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
        assert len(served.engine.aborted) == 1


def test_idle_connections_do_not_delay_the_end() -> None:
    with serving(replace(plain_config(), shutdown_timeout_s=60)) as served:
        assert served.complete(prompt="x").status_code == 200  # the connection stays open
        served.server.handle_exit(signal.SIGTERM, None)
        assert eventually(lambda: not listens(served), within_s=30)


def test_second_signal_does_not_wait() -> None:
    with serving(replace(plain_config(), shutdown_timeout_s=60)) as served:
        served.do(served.engine.may_step.clear)
        lines: list[str] = []
        thread = stream_lines(served, lines, 20)
        served.server.handle_exit(signal.SIGTERM, None)
        served.server.handle_exit(signal.SIGINT, None)
        thread.join(30)
        assert not thread.is_alive()


def listens(served: Served) -> bool:
    try:
        httpx.get(served.url + "/livez", timeout=10)
    except httpx.TimeoutException:
        return True
    except httpx.HTTPError:
        return False
    return True
