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
from quire.engine.running_record import RunningRecord, create_record


class LaunchedEngine(NamedTuple):
    """An engine process that has its configuration, the server's end of the socket to it, and the
    record of the requests that it is at work on. The process ends when the socket closes."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    record: RunningRecord


def launch(config: EngineConfig) -> LaunchedEngine:
    """Start an engine process with `config`. Raises OSError if no process can be started."""
    record = create_record()
    ours, theirs = socket.socketpair()
    with theirs, _closed_on_error(ours), _closed_on_error(record):
        ours.sendall(frame(msgspec.msgpack.encode(config)))
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # nothing is imported from the folder that the user happens to be in
                "-m",
                "quire.engine.process",
                str(theirs.fileno()),
                str(record.fd),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), record.fd),
            start_new_session=True,
        )
    return LaunchedEngine(process, ours, record)


@contextmanager
def _closed_on_error(opened: socket.socket | RunningRecord) -> Iterator[None]:
    """Close what was opened if the block raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise
