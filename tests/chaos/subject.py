"""The server under attack: its processes, found by what it says of itself, and its metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.chaos.checkpoints import BUNDLED
from tests.chaos.metrics import Metrics, metrics_of
from tests.chaos.ties import Judge
from tests.e2e.server_process import (
    NO_VARIABLES,
    ServerProcess,
    engines_of,
    eventually,
    server_process,
)

ENGINE_START = "quire:engine_process_start_time_seconds"
SAME_START_S = 0.02
"""Start times of one process differ by this at most, as ticks of the clock are read."""
BACK_WITHIN_S = 90.0
IDLE_WITHIN_S = 60.0
FLAGS = ("--dtype", "float32", "--log-level", "warning")


class Subject:
    """A running server. Its probes have connections of their own, apart from those of clients."""

    def __init__(self, server: ServerProcess, weights: Path) -> None:
        self.server = server
        self.url = server.url
        self.process = psutil.Process(server.process.pid)
        self._client = httpx.Client(base_url=server.url, timeout=60)
        self.num_calls = 0
        self.judge = Judge(weights)

    def close(self) -> None:
        self._client.close()

    def status(self, path: str) -> int:
        """Return the status of a probe, 0 where none came."""
        try:
            return self._client.get(path).status_code
        except httpx.HTTPError:
            return 0

    def metrics(self) -> Metrics:
        return metrics_of(self._client.get("/metrics").text)

    def get(self, path: str) -> httpx.Response:
        """Get what belongs to no load, likewise."""
        self.num_calls += 1
        return self._client.get(path)

    def upload(self, name: str, text: str) -> httpx.Response:
        """Upload a file for a batch, likewise."""
        self.num_calls += 1
        file = {"file": (name, text.encode())}
        return self._client.post("/v1/files", files=file, data={"purpose": "batch"})

    def post(self, path: str, body: object) -> httpx.Response:
        """Post what belongs to no load; such calls are counted, for the accounts."""
        self.num_calls += 1
        return self._client.post(path, json=body)

    def engines(self) -> list[psutil.Process]:
        """Return all processes of engines: the one that serves, one that loads."""
        return engines_of(self.process.pid)

    def engine(self) -> psutil.Process | None:
        """Return the engine that serves, by the start that the metrics tell; None while there is
        none."""
        started_s = self.metrics().get(ENGINE_START)
        if started_s is None:
            return None
        for process in self.engines():
            if abs(process.create_time() - started_s) <= SAME_START_S and _runs(process):
                return process
        return None

    def wait_engine(self) -> psutil.Process:
        """Wait for an engine that serves. Raises AssertionError where none comes in time."""
        found: list[psutil.Process] = []

        def serves() -> bool:
            assert self.server.process.poll() is None, f"the server ended:\n{self.said()}"
            engine = self.engine() if self.status("/readyz") == 200 else None
            found[:] = [] if engine is None else [engine]
            return bool(found)

        assert eventually(serves, BACK_WITHIN_S), f"no engine serves:\n{self.said()}"
        return found[0]

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        name: str = self.get("/v1/models").json()["data"][0]["id"]
        return name

    def wait_gone(self, engine: psutil.Process) -> None:
        """Wait until the server has ended an engine. Raises AssertionError where it does not."""
        assert eventually(lambda: not _runs(engine), BACK_WITHIN_S), f"never ended:\n{self.said()}"

    def wait(self, holds: Callable[[], bool], within_s: float = IDLE_WITHIN_S) -> bool:
        return eventually(holds, within_s)

    def said(self) -> str:
        return self.server.log()[-4000:]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def subject(
    *flags: str, variables: Mapping[str, str] = NO_VARIABLES, weights: Path = BUNDLED
) -> Iterator[Subject]:
    """Start a server with these flags, and `variables` in its environment. It serves the
    numbers of `weights`."""
    with server_process(*FLAGS, *flags, variables=variables) as server:
        made = Subject(server, weights)
        try:
            yield made
        finally:
            made.close()
