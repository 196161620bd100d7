"""The server's end of the process that stands by and forks engines (`engine/forker.py`)."""

import os
import socket
from functools import partial

import msgspec

from quire.engine.imports import LEAN, WHOLE
from quire.engine.spawn import Descriptors, run_module
from quire.engines.process.forked_process import ForkedProcess
from quire.engines.process.launch import LaunchedEngine, ProcessHandle, launched_by


class Standby:
    """A process that imports all that engines need, at once, and forks engines from then on;
    `is_lean` leaves out what only code of a checkpoint may want.

    Raises OSError if it cannot be started, or if this system cannot watch forked processes.
    """

    def __init__(self, *, is_lean: bool) -> None:
        os.close(os.pidfd_open(os.getpid()))
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        try:
            with theirs:
                fd = theirs.fileno()
                scope = LEAN if is_lean else WHOLE
                self._process = run_module("quire.engine.forker", str(fd), scope, fds=(fd,))
        except BaseException:
            self._control.close()
            raise
        self._last: ForkedProcess | None = None
        self._has_forked = False

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def has_forked(self) -> bool:
        """Whether it has forked an engine, so that all is imported."""
        self._has_forked |= self._last is not None and self._last.pid is not None
        return self._has_forked

    def wait_forked(self, timeout: float) -> bool:
        """Wait until the last engine is forked, for at most so many seconds; return whether it
        is."""
        return self._last is not None and self._last.wait_forked(timeout)

    def prepare(self, model_type: str) -> None:
        """Let it import what loading a model of a type needs. Raises OSError if it is gone."""
        self._control.send(msgspec.msgpack.encode(model_type), socket.MSG_DONTWAIT)

    def fork(self, model_type: str) -> LaunchedEngine:
        """Return an engine that waits for its configuration, and is forked once all is imported,
        for a model of this type if one is given. Raises OSError if the process is gone."""
        return launched_by(partial(self._start, model_type))

    def close(self) -> None:
        """End the process; its engines go on."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _start(self, model_type: str, fds: Descriptors) -> ProcessHandle:
        told, theirs = os.pipe()
        try:
            message = msgspec.msgpack.encode(model_type)
            flags = socket.MSG_DONTWAIT
            socket.send_fds(self._control, [message], [*fds, theirs], flags)
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(theirs)
        self._last = ForkedProcess(told, self._process)
        return self._last
