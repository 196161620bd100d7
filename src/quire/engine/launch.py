"""Starts the engine process. It needs no event loop, so that the engine can import and load while
the server has not yet imported its own parts.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from quire.engine.channel import frame
from quire.engine.config import EngineConfig
from quire.engine.recording.flight_ring import FlightRing
from quire.engine.recording.ring import create_ring
from quire.engine.running_record import RunningRecord, create_record

STANDBY = "--standby"
"""Tells an engine process to import what it will need before it has its configuration; the type of
the model that it is likely for follows."""


class LaunchedEngine(NamedTuple):
    """An engine process, the server's end of the socket to it, the record of the requests that it
    is at work on, and the server's end of its flight recorder. The process ends when the socket
    closes."""

    process: subprocess.Popen[bytes]
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
    launched = spawn()
    configure(launched, config)
    return launched


def configure(launched: LaunchedEngine, config: EngineConfig) -> None:
    """Send a process its configuration, with which it begins to load. Raises OSError if it has
    ended."""
    body = msgspec.msgpack.encode(launched.ring.configured(config))
    launched.socket.sendall(frame(body))


def spawn(standby_for: str | None = None) -> LaunchedEngine:
    """Start an engine process that waits for its configuration, and imports meanwhile what an
    engine for a model of the type `standby_for` needs. Raises OSError."""
    record = create_record()
    ours, theirs = socket.socketpair()
    with theirs, _closed_on_error(ours), _closed_on_error(record):
        ring = FlightRing(create_ring())
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # nothing is imported from the folder that the user happens to be in
                "-m",
                "quire.engine.process",
                str(theirs.fileno()),
                str(record.fd),
                *([] if standby_for is None else [STANDBY, standby_for]),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), record.fd, ring.fd),
            start_new_session=True,
        )
    return LaunchedEngine(process, ours, record, ring)


@contextmanager
def _closed_on_error(opened: socket.socket | RunningRecord) -> Iterator[None]:
    """Close what was opened if the block raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise
