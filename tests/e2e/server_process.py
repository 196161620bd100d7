"""The real server in its own process, with a hard end to every wait."""

import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import httpx
import psutil

from tests.server.documented import held_to_document

READY_WITHIN_S = 150.0
LOOK_EVERY_S = 0.1
"""A start takes seconds, and each look its share of a processor."""
STOP_WITHIN_S = 30.0
FLAGS = ("--port", "0", "--num-threads", "1")
"""One thread: threads that wait for each other are slow where cores are shared with other tests."""
MODEL = "quire-bundled"
"""The model where a test names none: no test waits for a network."""
REPLICAS = os.environ.get("TEST_REPLICAS")
"""So many replicas on Ray Serve are behind each server, where it says so; else one engine."""
ENGINES = os.environ.get("TEST_ENGINES")
"""So many engines in one box are, likewise."""
SERVE = ("quire.server.cli", "serve")
"""The module that is run, and its first words."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class ServerProcess:
    """`url` is where it listens; `log` what it has said so far."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        url: str,
        log_path: Path,
        trust: ssl.SSLContext | bool = True,
    ) -> None:
        self.process = process
        self.url = url
        hooks = {"response": [held_to_document(url, trust)]}
        self.client = httpx.Client(base_url=url, verify=trust, timeout=60, event_hooks=hooks)
        self._log_path = log_path

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_ready(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, f"the server has ended:\n{self.log()}"
            return self.client.get("/readyz").status_code == 200

        assert eventually(answers, READY_WITHIN_S, LOOK_EVERY_S), f"not ready:\n{self.log()}"

    def metric(self, selector: str) -> float:
        """The sum of what a selector as of PromQL finds, over all engines if it does not name one.
        It is a name, the beginning of one, or a name with labels: `quire:kv_blocks{state="free"}`.
        """
        return self.metrics(selector)[0]

    def metrics(self, *selectors: str) -> list[float]:
        """The same for several metrics of one moment."""
        lines = self.client.get("/metrics").text.splitlines()
        return [sum(_selected(lines, selector)) for selector in selectors]

    def engine_process(self) -> psutil.Process:
        (engine,) = engines_of(self.process.pid)
        return engine

    def stop(self) -> int:
        """By SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_WITHIN_S)


def _selected(lines: Iterable[str], selector: str) -> list[float]:
    name, brace, labels = selector.partition("{")
    wanted = [each for each in labels.rstrip("}").split(",") if each]
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(name + brace) and all(each in line for each in wanted)
    ]
    assert values, f"no metric {selector}"
    return values


def engines_of(server_pid: int) -> list[psutil.Process]:
    """The processes of a server's engines, those that load too, the oldest first."""
    found = []
    for child in psutil.Process(server_pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if child.name() == "quire-engine":
                found.append(child)
    return sorted(found, key=lambda each: each.create_time())


def eventually(holds: Callable[[], bool], within_s: float, every_s: float = 0.01) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


@contextmanager
def server_process(
    *flags: str,
    ready: bool = True,
    trust: ssl.SSLContext | bool = True,
    variables: Mapping[str, str] = NO_VARIABLES,
    command: Sequence[str] = SERVE,
) -> Iterator[ServerProcess]:
    """`quire serve`, or another `command`, on a free port; it is ended, by force if need be, with
    the block. `trust` is what the client trusts over TLS, `variables` come on top of the
    environment."""
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "server.log"
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command, *FLAGS, *_several(), *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
                | ({} if "--models-config-file" in flags else {"QUIRE_MODEL": "bundled"})
                | dict(variables),
            )
        assert process.stdout is not None
        with process, process.stdout as said:
            line = said.readline()
            words = [word for word in line.split() if word.startswith(("http://", "https://"))]
            assert words, f"the server said {line!r}:\n{log_path.read_text()}"
            server = ServerProcess(process, words[0], log_path, trust)
            try:
                if ready:
                    server.wait_ready()
                yield server
            finally:
                server.client.close()
                _end(process)


def _several() -> Iterator[str]:
    """The flags by which servers have several engines."""
    for flag, number in (("--replicas", REPLICAS), ("--data-parallel-size", ENGINES)):
        if number is not None:
            yield from (flag, number)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        for child in children:
            child.kill()
