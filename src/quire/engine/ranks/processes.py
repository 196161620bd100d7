"""Starts the processes of the ranks that follow rank 0.

A fork has everything imported already, so that an engine is there again as soon as with one rank;
where the process has threads, which a fork would lack, or its system cannot tell, a new one is
started. A follower ends when its socket closes, and on Linux with the process that started it,
however that ends.
"""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from quire.engine.process_setup import die_with_parent, has_other_threads, is_main_thread
from quire.engine.spawn import run_module

logger = logging.getLogger(__name__)

POLL_S = 0.01
MODULE = "quire.engine.ranks.follower"

Follow = Callable[[socket.socket, int], NoReturn]
"""Follows rank 0 at a socket as the rank of that number, in a process of its own."""


class RankProcess(Protocol):
    """The process of a rank, a child of this one."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended, -N where signal N ended it. Raises
        subprocess.TimeoutExpired."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


class ForkedRank:
    """A process that this one has forked. Used by one thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        began_s = time.monotonic()
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif timeout is not None and time.monotonic() - began_s > timeout:
                raise subprocess.TimeoutExpired(f"the process {self._pid}", timeout)
            else:
                time.sleep(POLL_S)
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)


class StartedRank(NamedTuple):
    """Another rank, its process and this end of the socket to it."""

    rank: int
    process: RankProcess
    socket: socket.socket


def start_ranks(num_ranks: int, follow: Follow) -> list[StartedRank]:
    """Start the ranks from 1 to `num_ranks` - 1; in a forked one `follow` is called. Raises OSError
    if one cannot be started."""
    must_spawn = has_other_threads()
    if must_spawn:
        logger.info("this process has threads, so that its ranks are not forked but started anew")
    started: list[StartedRank] = []
    for rank in range(1, num_ranks):
        ours, theirs = socket.socketpair()
        with theirs:
            process = (
                _spawn(theirs, rank)
                if must_spawn
                else _fork(theirs, rank, [ours, *(each.socket for each in started)], follow)
            )
        started.append(StartedRank(rank, process, ours))
    return started


def _fork(
    theirs: socket.socket, rank: int, of_rank_0: list[socket.socket], follow: Follow
) -> ForkedRank:
    own_id, lives_on = os.getpid(), is_main_thread()
    pid = os.fork()
    if pid:
        return ForkedRank(pid)
    if lives_on:
        die_with_parent(own_id)
    for each in of_rank_0:
        each.close()
    follow(theirs, rank)


def _spawn(theirs: socket.socket, rank: int) -> RankProcess:
    fd = theirs.fileno()
    parent_id = [str(os.getpid())] if is_main_thread() else []
    return run_module(MODULE, str(fd), str(rank), *parent_id, fds=(fd,))
