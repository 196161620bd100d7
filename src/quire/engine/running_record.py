"""A record of the requests that an engine is at work on, which outlives it: memory that it shares
with the server.

The engine writes it before each step whose requests are others than those of the one before; the
server reads it once the engine has ended.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterable

from quire.scheduler.step import Step

SIZE = 1 << 20
_HEADER = struct.Struct("<QII")
"""The sequence number, which is odd while the record is written; the bytes of the ids and their
checksum."""


class RunningRecord:
    """The record in the memory of a file descriptor, which `create_record` makes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, SIZE)
        self._sequence = 0

    def write(self, request_ids: Iterable[str]) -> None:
        """Replace the ids. Where they are too many for the memory, the record is unreadable."""
        body = "\n".join(request_ids).encode()
        self._sequence += 1
        _HEADER.pack_into(self._memory, 0, self._sequence, 0, 0)
        if len(body) > SIZE - _HEADER.size:
            self._sequence += 1
            return
        self._memory[_HEADER.size : _HEADER.size + len(body)] = body
        self._sequence += 1
        _HEADER.pack_into(self._memory, 0, self._sequence, len(body), zlib.crc32(body))

    def read(self) -> tuple[str, ...] | None:
        """Return the ids, or None where the engine ended in the middle of writing them, and once
        the memory is given back."""
        if self._memory.closed:
            return None
        sequence, num_bytes, checksum = _HEADER.unpack_from(self._memory, 0)
        body = self._memory[_HEADER.size : _HEADER.size + min(num_bytes, SIZE)]
        if sequence % 2 or len(body) != num_bytes or zlib.crc32(body) != checksum:
            return None
        return tuple(body.decode().split("\n")) if body else ()

    def close(self) -> None:
        """Give the memory back; may be called again."""
        if not self._memory.closed:
            self._memory.close()
            os.close(self.fd)


def create_record() -> RunningRecord:
    """Return a record in new memory, which names no request."""
    fd = os.memfd_create("quire-running")
    os.ftruncate(fd, SIZE)
    return RunningRecord(fd)


class RunningRequests:
    """The active requests of the engine: those in the runner, and those about to enter."""

    def __init__(self, record: RunningRecord) -> None:
        self._record = record
        self._held: dict[str, None] = {}
        self._entering: dict[str, None] = {}
        self._left: tuple[str, ...] = ()

    def note_step(self, step: Step) -> None:
        """Write the changes of a step, before it runs. A request that it lets go of stays for one
        step, since a device may still compute the step before."""
        if not (step.new_requests or step.finished_requests or self._left):
            return
        for request_id in self._left:
            self._held.pop(request_id, None)
        self._left = step.finished_requests
        for new in step.new_requests:
            self._held[new.request.id] = None
        self._left = tuple(each for each in self._left if each not in _ids(step))
        self._write()

    def enter(self, request_id: str) -> None:
        """Note that a request is added, or that its preparation is complete."""
        self._entering[request_id] = None
        self._write()

    def leave(self, request_id: str) -> None:
        """Note that it was taken in; the next write forgets it."""
        self._entering.pop(request_id, None)

    def _write(self) -> None:
        self._record.write((*self._held, *self._entering))


def _ids(step: Step) -> frozenset[str]:
    return frozenset(new.request.id for new in step.new_requests)
