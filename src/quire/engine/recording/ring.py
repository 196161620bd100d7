"""The ring that a record is written to: memory of the system that both processes have mapped, so
that what the engine wrote is there when the engine is gone, however it ended.

    head      slot 0                 slot 1                 ...
              [number][length] data  [number][length] data

A slot holds one segment. It is written from its beginning; `length` says how much is whole, and is
written last. A new segment takes the slot of the oldest, whose number is void from then on.
"""

import mmap
import os
from struct import Struct
from typing import NamedTuple

NUM_SLOTS = 8
SLOT_BYTES = 4 << 20
"""All slots together are 32 MiB. Only pages that were written take memory."""
RING_BYTES = NUM_SLOTS * SLOT_BYTES
_SLOT_HEAD = Struct("<QQ")


class Segment(NamedTuple):
    """The data of one segment; higher numbers are newer."""

    number: int
    data: bytes


def create_ring() -> int:
    """Return the descriptor of an empty ring. Raises OSError."""
    fd = os.memfd_create("quire-flight-recorder", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, RING_BYTES)
    except BaseException:
        os.close(fd)
        raise
    return fd


class RingWriter:
    """Writes segments to the ring behind a descriptor, which may then be closed. `num_left` bytes
    can still be appended to the newest."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, RING_BYTES)
        self._number = 0
        self._start = 0
        self._length = 0

    @property
    def num_left(self) -> int:
        return SLOT_BYTES - _SLOT_HEAD.size - self._length

    def begin(self, data: bytes) -> bool:
        """Begin a segment with `data`; return False, and do nothing, if a slot cannot hold it."""
        if len(data) > SLOT_BYTES - _SLOT_HEAD.size:
            return False
        self._number += 1
        self._start = (self._number - 1) % NUM_SLOTS * SLOT_BYTES
        _SLOT_HEAD.pack_into(self._memory, self._start, 0, 0)
        self._length = 0
        self.append(data)
        return True

    def append(self, data: bytes) -> None:
        """Append to the newest segment; `num_left` must be as much."""
        first = self._start + _SLOT_HEAD.size + self._length
        self._memory[first : first + len(data)] = data
        self._length += len(data)
        _SLOT_HEAD.pack_into(self._memory, self._start, self._number, self._length)

    def close(self) -> None:
        """Release the memory; its content stays for other processes."""
        self._memory.close()


class RingReader:
    """Reads the ring behind a descriptor, which may then be closed, while it is written to."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, RING_BYTES, prot=mmap.PROT_READ)

    def segments(self) -> list[Segment]:
        """Return the segments, the oldest first; one that is replaced while it is read is left
        out."""
        segments, memory = [], self._memory
        for start in range(0, RING_BYTES, SLOT_BYTES):
            number, length = _SLOT_HEAD.unpack_from(memory, start)
            first = start + _SLOT_HEAD.size
            data = memory[first : first + min(length, SLOT_BYTES - _SLOT_HEAD.size)]
            again, _ = _SLOT_HEAD.unpack_from(memory, start)
            if number and number == again:
                segments.append(Segment(number, data))
        return sorted(segments)


def read_ring(fd: int) -> list[Segment]:
    """Return the segments of a ring, the oldest first."""
    return RingReader(fd).segments()
