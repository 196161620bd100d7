"""The process of an engine that another process has forked: the server is not its parent, and is
told by that one what it could not see."""

import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress

from quire.engine.spawn import TOLD

POLL_S = 0.01
NOT_TOLD = 1
"""The exit code of an engine that could not be forked, or whose end nobody can tell."""


class ForkedProcess:
    """An engine's process as `subprocess.Popen` would have it. TOLD records arrive at the pipe
    `told`: the process's id, and its exit code. `maker` forks it; where that ends first, the engine
    counts as ended in the same way.

    Methods may be called in any thread.
    """

    def __init__(self, told: int, maker: "subprocess.Popen[bytes]") -> None:
        os.set_blocking(told, False)
        self._told = told
        self._maker = maker
        self._pid: int | None = None
        self._process_fd: int | None = None
        self._code: int | None = None
        self._is_told_all = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process's id, or None while it is not forked."""
        self.poll()
        return self._pid

    def poll(self) -> int | None:
        """Return the exit code, -N where signal N ended the process; None while it runs or is yet
        to be forked."""
        with self._lock:
            return self._poll()

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended or is yet to be forked."""
        with self._lock:
            if self._poll() is None and self._process_fd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._process_fd, sig)

    def kill(self) -> None:
        """End the process at once. One that is yet to be forked is given up: it ends by itself
        when it finds its socket closed."""
        with self._lock:
            self.send_signal(signal.SIGKILL)
            if self._code is None and self._pid is None:
                self._end(-signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("an engine", timeout)
            time.sleep(POLL_S)
        return code

    def wait_forked(self, timeout: float) -> bool:
        """Wait until the process is forked, or will not be, for at most so many seconds; return
        whether that is so."""
        deadline_s = time.monotonic() + timeout
        while self.pid is None and self._code is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._told], [], [], left_s)[0]:
                return False
        return True

    def _poll(self) -> int | None:
        while self._code is None and not self._is_told_all:
            try:
                record = os.read(self._told, TOLD.size)
            except BlockingIOError:
                return None
            self._take(record)
        if self._code is None and self._has_ended_untold():
            self._end(self._maker.poll() or NOT_TOLD)
        return self._code

    def _take(self, record: bytes) -> None:
        if not record:
            self._is_told_all = True
            return
        (number,) = TOLD.unpack(record)
        if self._pid is not None:
            self._end(number)
            return
        self._pid = number
        with suppress(OSError):  # it has ended, and how is told next
            self._process_fd = os.pidfd_open(number)

    def _has_ended_untold(self) -> bool:
        """Return True if the process has ended, and nobody is left who could tell how."""
        if self._process_fd is None:
            return True
        return bool(select.select([self._process_fd], [], [], 0)[0])

    def _end(self, code: int) -> None:
        self._code = code
        os.close(self._told)
        if self._process_fd is not None:
            os.close(self._process_fd)
            self._process_fd = None
