"""A request that crashes the engine, through a checkpoint with code of its own, is found and ended;
those beside it lose nothing but time."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.restarts.crashing_checkpoint import CRASHES, HANGS, write_crashing_checkpoint
from tests.e2e.server_process import ServerProcess, server_process

FLAGS = ("--trust-remote-code", "--dtype", "float32", "--max-num-seqs", "32")
MODEL = "crashing"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_crashing_checkpoint(tmp_path_factory.mktemp("models") / "crashing")


@contextmanager
def serving(checkpoint: Path, *flags: str) -> Iterator[ServerProcess]:
    with server_process(str(checkpoint), "--served-model-name", MODEL, *FLAGS, *flags) as server:
        yield server


def completed(server: ServerProcess, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 80, "ignore_eos": True, **fields}
    return httpx.post(server.url + "/v1/completions", json=body, timeout=200)


def texts(server: ServerProcess, num: int) -> list[str]:
    """The texts of `num` requests at once, none of which draws a token that the model cannot
    take."""

    def text(number: int) -> str:
        reply = completed(
            server,
            prompt=f"Story {number}",
            seed=number,
            logit_bias={CRASHES: -100, HANGS: -100},
        )
        assert reply.status_code == 200, reply.text
        told: str = reply.json()["choices"][0]["text"]
        return told

    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(text, range(num)))


def test_a_request_that_crashes_the_engine_is_ended_and_20_others_are_not(checkpoint: Path) -> None:
    bad = {"prompt": "Stop", "logit_bias": {CRASHES: 100}, "min_tokens": 10}
    with serving(checkpoint) as server, ThreadPoolExecutor(2) as pool:
        expected = texts(server, 20)
        beside = pool.submit(texts, server, 20)
        reply = completed(server, **bad)
        assert reply.status_code == 500, reply.text
        assert reply.json()["error"]["code"] == "request_crashes_engine"
        assert beside.result() == expected
        num_restarts = server.metric("quire:engine_restarts_total{")
        assert num_restarts <= 7
        assert num_restarts == server.metric('quire:engine_restarts_total{cause="crashed"')
        assert server.metric("quire:requests_quarantined_total") == 1
        again = completed(server, **bad)
        assert (again.status_code, again.json()["error"]["code"]) == (500, "request_crashes_engine")
        assert server.metric("quire:engine_restarts_total{") == num_restarts
        assert "crashing.py" in server.log(), "the stack of the crash is logged"


@pytest.mark.long  # whole answers that do are in every run
def test_a_stream_that_crashes_the_engine_ends_with_an_error(checkpoint: Path) -> None:
    body = {
        **{"model": MODEL, "prompt": "Stop", "max_tokens": 50, "stream": True},
        "logit_bias": {CRASHES: 100},
    }
    with serving(checkpoint) as server:
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as reply:
            assert reply.status_code == 200, "it was accepted, and its first token was sent"
            lines = [line for line in reply.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert error["code"] == "request_crashes_engine"
        reply = completed(server, prompt=[[5, 6, CRASHES]], stream=True)
        assert reply.status_code == 500, "it was never accepted"
        assert server.metric("quire:engine_restarts_total{") == 4


@pytest.mark.long  # a supervisor ends those of a toy in every run
def test_a_step_that_does_not_end_is_ended_and_told_in_the_log(checkpoint: Path) -> None:
    with serving(checkpoint, "--stuck-after", "1") as server, ThreadPoolExecutor(2) as pool:
        expected = texts(server, 3)
        beside = pool.submit(texts, server, 3)
        reply = completed(server, prompt="Stop", logit_bias={HANGS: 100})
        assert reply.json()["error"]["code"] == "request_crashes_engine"
        assert beside.result() == expected
        assert server.metric('quire:engine_restarts_total{cause="stuck"') >= 2
        assert "crashing.py" in server.log()
