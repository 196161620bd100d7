"""The server's own life: early health, the death of its engine, the drain, failed starts."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, eventually, server_process

LONG = {"prompt": "x", "n": 8, "max_tokens": 900, "ignore_eos": True, "stream": True}


class Reader:
    """Reads one stream in a thread; `lines` are its events."""

    def __init__(self, server: ServerProcess, body: dict[str, object]) -> None:
        self.lines: list[str] = []
        self.began = threading.Event()
        self._url = server.url + "/v1/completions"
        self._body = body
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as reply:
            for line in reply.iter_lines():
                if line:
                    self.lines.append(line)
                    self.began.set()

    def end(self, within_s: float) -> dict[str, object]:
        """The last event before [DONE]."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the stream hangs"
        assert self.lines[-1] == "data: [DONE]"
        last: dict[str, object] = json.loads(self.lines[-2].removeprefix("data: "))
        return last


def error_code(event: dict[str, object]) -> object:
    error = event["error"]
    assert isinstance(error, dict)
    return error["code"]


@pytest.mark.long  # in every run a supervisor gives a toy up, and probes tell of it
@pytest.mark.one_engine
def test_death_of_an_engine_that_none_follows_is_seen_and_told() -> None:
    with server_process("--max-num-seqs", "8", "--max-engine-restarts", "0") as server:
        readers = [Reader(server, {**LONG, "n": 1, "prompt": f"{index}"}) for index in range(12)]
        assert eventually(lambda: sum(reader.began.is_set() for reader in readers) == 8, 60)
        assert eventually(lambda: server.metric("quire:num_requests_waiting{") == 4, 10)
        num_blocks = server.metric("quire:kv_blocks{")
        server.engine_process().kill()
        assert eventually(lambda: server.client.get("/readyz").status_code == 503, 30)
        for reader in readers:
            assert error_code(reader.end(10)) == "engine_down"
        assert server.client.get("/livez").status_code == 503
        assert server.metric("quire:kv_blocks{") == num_blocks
        reply = server.client.post("/v1/completions", json={"prompt": "x"})
        assert reply.json()["error"]["code"] == "engine_down"
        assert server.stop() == 0


def test_drain_lets_running_requests_finish() -> None:
    with server_process("--shutdown-timeout", "60") as server:
        reader = Reader(server, {**LONG, "max_tokens": 400})
        assert reader.began.wait(60)
        server.process.terminate()
        assert eventually(lambda: server.client.get("/readyz").status_code == 503, 5)
        assert server.client.get("/readyz").json() == {"status": "draining"}
        reply = server.client.post("/v1/completions", json={"prompt": "x"})
        assert reply.json()["error"]["code"] == "shutting_down"
        last = reader.end(60)
        assert '"finish_reason":"length"' in json.dumps(last, separators=(",", ":"))
        assert server.process.wait(30) == 0


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_server_exists_ends_it_with_a_line(sent: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "quire.server.cli", "serve", "bundled", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert eventually(lambda: catches(process.pid, signal.SIGTERM), 30)
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + sent, f"quire: ended by {sent.name}\n")


def catches(pid: int, sent: signal.Signals) -> bool:
    """As Linux tells it: a mask of the signals that have a handler."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")]
    return bool(mask >> (sent - 1) & 1)
