"""The process that stands by: it has imported all that engines need, and forks them, so that an
engine which ends is followed at once. `python -m quire.engine.forker SOCKET lean|whole`, started by
`standby.py`.

An engine shares the memory of what was imported until it writes to it. Neither threads nor a GPU's
context survive a fork: nothing here makes them, and those of OpenBLAS end before it by themselves.

A message on the socket, whose messages have borders, is the type of a model as MessagePack; what
loading such a model needs is imported, and for a toy no more than that. With four descriptors an
engine is forked that has the first three (`Descriptors`). The fourth is a pipe, to which TOLD
records go: the id of the engine's process, and its exit code once it has ended. The process ends
when the socket closes; its engines go on, each until its own socket closes.
"""

import logging
import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple

import msgspec

from quire.engine.channel import Channel, ChannelClosed
from quire.engine.config import TOY_MODEL
from quire.engine.failure_kind import start_failure_of
from quire.engine.imports import LEAN, import_engine, import_what_loading_needs
from quire.engine.messages import EngineFailure, LoadingProgress
from quire.engine.process import run
from quire.engine.process_setup import prepare_process, set_process_name
from quire.engine.spawn import TOLD, Descriptors
from quire.process_age import process_age_s

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 1 << 12
NUM_FDS = len(Descriptors._fields) + 1


class ForkRequest(NamedTuple):
    """A message of the server. `fds` are those of an engine that is wanted and the pipe, or
    none."""

    model_type: str
    fds: tuple[int, ...]

    def close(self) -> None:
        """Close the descriptors, which are an engine's own."""
        for fd in self.fds:
            os.close(fd)


class ForkedEngine(NamedTuple):
    """A process that was just forked to be an engine: its descriptors, and since when
    (`time.monotonic`) it was in the making."""

    fds: Descriptors
    began_s: float


class Forker:
    """Forks engines until its socket closes. `is_lean` is that of `import_engine`."""

    def __init__(self, control: socket.socket, began_s: float, *, is_lean: bool) -> None:
        self._control = control
        self._is_lean = is_lean
        self._began_s: float | None = began_s
        self._imported: set[bool] = set()
        """The kinds of engines that are imported: True for toys, False for models."""
        self._told: dict[int, tuple[int, int]] = {}
        """The process id and the pipe of each engine, by the descriptor of its process."""
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> ForkedEngine | None:
        """Return None when the server is gone, and in each engine its `ForkedEngine`."""
        while True:
            for fd, _ in self._poll.poll():
                if fd != self._control.fileno():
                    self._bury(fd)
                    continue
                request = self._receive()
                if request is None:
                    return None
                self._import(request)
                if request.fds and (birth := self._fork(request)) is not None:
                    return birth

    def _receive(self) -> ForkRequest | None:
        """Return the next message, or None if the server is gone."""
        try:
            body, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, NUM_FDS)
        except OSError:
            return None
        return ForkRequest(msgspec.msgpack.decode(body, type=str), tuple(fds)) if body else None

    def _import(self, request: ForkRequest) -> None:
        """Import the missing modules, and report the result, or an error, to the server; the error
        is raised."""
        try:
            if request.fds:
                self._say(request, LoadingProgress("imports", 0, 1))
            is_toy = request.model_type == TOY_MODEL
            if is_toy not in self._imported:
                import_engine(is_toy=is_toy, is_lean=self._is_lean)
                self._imported.add(is_toy)
            if not is_toy:
                import_what_loading_needs(request.model_type)
        except Exception as error:
            if request.fds:
                self._say(request, EngineFailure(f"{type(error).__name__}: {error}"))
            raise

    def _say(self, request: ForkRequest, message: LoadingProgress | EngineFailure) -> None:
        with socket.socket(fileno=os.dup(request.fds[0])) as to_server, suppress(ChannelClosed):
            Channel(to_server).send(message)

    def _fork(self, request: ForkRequest) -> ForkedEngine | None:
        """Fork an engine: return its `ForkedEngine` in the child, and None in the parent."""
        began_s, self._began_s = self._began_s, None
        try:
            pid = os.fork()
        except OSError as error:
            logger.warning("no engine can be forked: %s", error)
            self._say(request, EngineFailure(str(error), start_failure_of(error)))
            request.close()
            return None
        *fds, told = request.fds
        if pid == 0:
            self._close_all(told)
            os.setsid()
            return ForkedEngine(Descriptors(*fds), time.monotonic() if began_s is None else began_s)
        for fd in fds:
            os.close(fd)
        process_fd = os.pidfd_open(pid)
        self._told[process_fd] = (pid, told)
        self._poll.register(process_fd, select.POLLIN)
        self._tell(told, pid)
        return None

    def _close_all(self, told: int) -> None:
        """Close the forker's descriptors in an engine."""
        self._control.close()
        os.close(told)
        for process_fd, (_, other) in self._told.items():
            os.close(process_fd)
            os.close(other)

    def _bury(self, process_fd: int) -> None:
        """Report the exit code of an ended engine."""
        self._poll.unregister(process_fd)
        pid, told = self._told.pop(process_fd)
        os.close(process_fd)
        _, status = os.waitpid(pid, 0)
        self._tell(told, os.waitstatus_to_exitcode(status))
        os.close(told)

    def _tell(self, told: int, number: int) -> None:
        with suppress(OSError):  # nobody listens
            os.write(told, TOLD.pack(number))


def main() -> None:
    """Run the process. The arguments are the file descriptor of its socket and how much it
    imports."""
    prepare_process()
    set_process_name("quire-standby")
    # Whether there is a GPU may be asked while importing: NVML tells it without CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    began_s = time.monotonic() - process_age_s(time.time())
    _, fd, scope = sys.argv
    birth = Forker(socket.socket(fileno=int(fd)), began_s, is_lean=scope == LEAN).run()
    if birth is not None:
        run(birth.fds, imported_since_s=birth.began_s)


if __name__ == "__main__":
    main()
