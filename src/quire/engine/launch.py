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


class LaunchedEngine(NamedTuple):
    """An engine process that has its configuration, and the server's end of the socket to it. The
    process ends when the socket closes."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


def launch(config: EngineConfig) -> LaunchedEngine:
    """Start an engine process with `config`. Raises OSError if no process can be started."""
    ours, theirs = socket.socketpair()
    with theirs, _closed_on_error(ours):
        ours.sendall(frame(msgspec.msgpack.encode(config)))
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",  # nothing is imported from the folder that the user happens to be in
                "-m",
                "quire.engine.process",
                str(theirs.fileno()),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return LaunchedEngine(process, ours)


@contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close the socket if the block raises."""
    try:
        yield
    except BaseException:
        sock.close()
        raise
