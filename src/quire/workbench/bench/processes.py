"""Starts a `quire serve` for the benchmark, and ends the process group of any server."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quire.workbench.bench.exchange import parse_address
from quire.workbench.bench.server_client import BenchError, ServerClient

STOP_SIGNALS = ((signal.SIGINT, 15.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""Signals with the seconds to wait after each; the mild come first: a server that ends by itself
also ends its workers."""
SERVE = ("-m", "quire.server.cli", "serve", "--host", "127.0.0.1", "--port", "0")
LISTENS = re.compile(r" listens on (\S+) and loads ")
READY_POLL_S = 0.05
START_TIMEOUT_S = 1800.0
"""A large checkpoint may first have to be fetched."""
MAX_LOG_LINES = 8


class StartedServer(NamedTuple):
    """`startup_s` is from the start of the process until it was ready."""

    url: str
    startup_s: float


def _signal_group(pid: int, signal_number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal_number)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its group; workers that outlive it are killed."""
    for signal_number, patience_s in STOP_SIGNALS:
        if process.poll() is not None:
            break
        _signal_group(process.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    _signal_group(process.pid, signal.SIGKILL)


@contextmanager
def own_server(serve_args: Sequence[str]) -> Iterator[StartedServer]:
    """Start a server and wait until it is ready; at the end stop it with all its children, after
    SIGTERM too.

    BenchError shows the end of the log of a server that did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder, _sigterm_unwinds():
        log_path = Path(folder) / "server.log"
        start_s = time.monotonic()
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *SERVE, *serve_args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            url = _await_ready(process, log_path, start_s)
            yield StartedServer(url, time.monotonic() - start_s)
        finally:
            stop_group(process)


def _await_ready(process: subprocess.Popen[bytes], log_path: Path, start_s: float) -> str:
    url = None
    while time.monotonic() - start_s < START_TIMEOUT_S:
        log = log_path.read_text(errors="replace")
        if process.poll() is not None:
            last = "\n".join(log.splitlines()[-MAX_LOG_LINES:])
            raise BenchError(f"quire serve ended with {process.returncode}:\n{last}")
        found = LISTENS.search(log)
        url = found[1] if found else None
        if url is not None and ServerClient(parse_address(url), None).is_ready():
            return url
        time.sleep(READY_POLL_S)
    raise BenchError(f"quire serve was not ready in {START_TIMEOUT_S:.0f} s")


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM raise instead of ending the process, so that what was started is stopped."""

    def end(signal_number: int, _frame: object) -> None:
        sys.exit(128 + signal_number)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
