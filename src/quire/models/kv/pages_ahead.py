"""Maps the memory of KV blocks before it is first written.

The system maps a page of the KV cache when it is first written, in the middle of a step: a huge
page takes a tenth of a millisecond there, and up to ten where a virtual machine must ask its host
for it. An engine that has nothing to do, or computes no prompt, maps the pages of the blocks that
come next.
"""

import ctypes
import mmap
import sys
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from torch import Tensor

from quire.models.kv.huge_pages import HUGE_PAGE_BYTES

AHEAD_BYTES, AHEAD_SHARE = 512 << 20, 1 / 4
"""Memory that an idle engine maps beyond the blocks in use, and the share of the cache that this is
at most."""
BUSY_SHARE = 1 / 4
"""A busy engine maps a page when so much of this is left."""
MADV_POPULATE_WRITE = 23
"""The number of this advice in Linux, from 5.14 on; older systems refuse it."""


class _Piece(NamedTuple):
    """The piece of the tensor `number` that is mapped next: bytes `first` to `end` of it, which
    belong to `block` and those behind it."""

    block: int
    number: int
    first: int
    end: int


class PagesAhead:
    """Maps pages of tensors of the host, [num_blocks, ...] each, in the order of their blocks, up
    to `ahead_bytes` beyond those in use, but for AHEAD_SHARE of all at most."""

    def __init__(self, tensors: Sequence[Tensor], ahead_bytes: int = AHEAD_BYTES) -> None:
        self._tensors = [each for each in tensors if each.nbytes]
        num_bytes = sum(tensor.nbytes for tensor in self._tensors)
        block_bytes = sum(map(_block_bytes, self._tensors))
        self._num_ahead = int(min(ahead_bytes, AHEAD_SHARE * num_bytes) / max(block_bytes, 1))
        self._pieces = [self._piece(number, 0) for number in range(len(self._tensors))]
        heapify(self._pieces)

    def map_next(self, num_used: int, *, is_idle: bool) -> bool:
        """Map a page, if one is still to be mapped for the blocks below `num_used` or those that
        come next: fewer of these unless the engine `is_idle`. Return whether more may be mapped."""
        num_ahead = self._num_ahead if is_idle else int(BUSY_SHARE * self._num_ahead)
        if not self._pieces or self._pieces[0].block >= num_used + num_ahead:
            return False
        _, number, first, end = self._pieces[0]
        tensor = self._tensors[number]
        if not _map(tensor.data_ptr() + first, tensor.data_ptr() + end):
            self._pieces.clear()
        elif end < tensor.nbytes:
            heapreplace(self._pieces, self._piece(number, end))
        else:
            heappop(self._pieces)
        return bool(self._pieces)

    def _piece(self, number: int, first: int) -> _Piece:
        """Return the piece from byte `first` on: up to the end of its huge page."""
        tensor = self._tensors[number]
        left = HUGE_PAGE_BYTES - (tensor.data_ptr() + first) % HUGE_PAGE_BYTES
        end = min(first + left, tensor.nbytes)
        return _Piece(first // _block_bytes(tensor), number, first, end)


def _block_bytes(tensor: Tensor) -> int:
    return tensor.nbytes // len(tensor)


def _map(address: int, end: int) -> bool:
    if sys.platform != "linux":
        return False
    first = address - address % mmap.PAGESIZE
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return not advise(first, end - first, MADV_POPULATE_WRITE)
