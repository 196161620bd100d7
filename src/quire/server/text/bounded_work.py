"""Bounds on work that a client describes, in a process that has nothing else to do."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_CPU_S = 1.0
MAX_BYTES = 512 * 1024 * 1024


@contextmanager
def bounded_work(max_bytes: int = MAX_BYTES) -> Iterator[None]:
    """End the process where the block computes for longer than MAX_CPU_S; within it, MemoryError
    stands for more than `max_bytes` of new memory (on Linux). For the main thread of a worker."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        most = _address_space() + max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Return the bytes of the process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
