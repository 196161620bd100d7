"""Starts the first processes of an engine: modules of Quire in a session of their own, with
inherited descriptors."""

import subprocess
import sys
from struct import Struct
from typing import NamedTuple

TOLD = Struct("<q")
"""A record that tells of a forked engine: first the id of its process, then its exit code."""


class Descriptors(NamedTuple):
    """The file descriptors that an engine process is given: its socket to the server, the record of
    the requests that it is at work on, and the memory of its flight recorder."""

    socket: int
    record: int
    ring: int


def run_module(name: str, *arguments: str, fds: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    """Start a module of Quire in a process and a session of its own. Raises OSError."""
    return subprocess.Popen(
        # -P: nothing is imported from the folder that the user happens to be in
        [sys.executable, "-P", "-m", name, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )
