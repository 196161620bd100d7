"""Starts the engine process. It needs no event loop, so that the engine can import and load while
the server has not yet imported its own parts.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from quire.engine.channel import frame
from quire.engine.config import EngineConfig
from quire.engine.recording.ring import create_ring
from quire.engine.running_record import RunningRecord, create_record
from quire.engine.spawn import Descriptors, run_module
from quire.engines.process.flight_ring import FlightRing


class ProcessHandle(Protocol):
    """An engine's process, as far as the server has to do with it: a child of its own
    (`subprocess.Popen`), or one that another process has forked."""

    @property
    def pid(self) -> int | None:
        """The process's id, or None while it is not known yet."""

    def poll(self) -> int | None:
        """Return the exit code, -N where signal N ended the process; None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """End the process at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""


class LaunchedEngine(NamedTuple):
    """An engine process, the server's end of the socket to it, the record of the requests that it
    is at work on, and the server's end of its flight recorder. The process ends when the socket
    closes."""

    process: ProcessHandle
    socket: socket.socket
    record: RunningRecord
    ring: FlightRing

    def close(self) -> None:
        """Close the socket, the record and the flight recorder's memory."""
        self.socket.close()
        self.record.close()
        self.ring.close()


def launch(config: EngineConfig) -> LaunchedEngine:
    """Start an engine process with `config`. Raises OSError if no process can be started."""
    launched = launched_by(_spawn)
    configure(launched, config)
    return launched


def configure(launched: LaunchedEngine, config: EngineConfig) -> None:
    """Send a process its configuration, with which it begins to load. Raises OSError if it has
    ended."""
    body = msgspec.msgpack.encode(launched.ring.configured(config))
    launched.socket.sendall(frame(body))


def launched_by(start: Callable[[Descriptors], ProcessHandle]) -> LaunchedEngine:
    """Return an engine that waits for its configuration; `start` starts its process, which
    has descriptors of its own from then on. Raises OSError."""
    record = create_record()
    ours, theirs = socket.socketpair()
    with theirs, _closed_on_error(ours), _closed_on_error(record):
        ring = FlightRing(create_ring())
        with _closed_on_error(ring):
            process = start(Descriptors(theirs.fileno(), record.fd, ring.fd))
    return LaunchedEngine(process, ours, record, ring)


def _spawn(fds: Descriptors) -> ProcessHandle:
    return run_module("quire.engine.process", *map(str, fds), fds=fds)


@contextmanager
def _closed_on_error(opened: socket.socket | RunningRecord | FlightRing) -> Iterator[None]:
    """Close what was opened if the block raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise
