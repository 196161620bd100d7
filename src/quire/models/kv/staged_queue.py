"""The copies of a GPU's blocks. Between device and host they go through staging memory on the
device, in two halves: a kernel gathers blocks of all tensors into the rows of one half, or scatters
them from there, and neighbouring rows of the host are one copy each. Meanwhile the other half is
filled or emptied.

    out:   kernels   gather 0 | gather 1 |           gather 0 |           gather 1
           copies               half 0 to host | half 1 to host | half 0 to host | ...
    in:    copies    host to half 0 | host to half 1 |       host to half 0 |
           kernels                    scatter 0        scatter 1

A half is not written before it was read: whoever uses it next waits for its `free`. Within each of
the two streams, blocks and rows are read and written in the order of the copies.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.cache.block_copies import CopyBatch, CopyKind
from quire.models.kv.copy_queue import CopiedBlocks
from quire.models.kv.kv_store import KVStore
from quire.models.kv.streams import CUDAStream, Mark, Stream
from quire.models.kv.torch_gatherer import TorchGatherer
from quire.models.triton_device import why_not_device

logger = logging.getLogger(__name__)

HALF_BYTES = 16 << 20
"""The bytes of one half of the staging memory. PCIe takes half a millisecond for them, many times
what it takes to launch a kernel and a copy."""


class Gatherer(Protocol):
    """Moves blocks between the tensors of a store and the rows of its staging memory, on the
    current stream. Ids are those of blocks, and none is written twice."""

    def gather(self, blocks: Sequence[int], first_row: int) -> None:
        """Copy blocks to as many rows."""

    def scatter(self, blocks: Sequence[int], first_row: int) -> None:
        """Copy rows to as many blocks."""

    def fork(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks to other blocks, which are disjoint from them."""


class Streams(NamedTuple):
    """The streams of a GPU: that of steps, that of gathers and scatters, and that of copies from
    and to the host."""

    computing: Stream
    kernels: Stream
    copies: Stream


@dataclass(slots=True)
class StagingHalf:
    """The half of the staging memory from `first_row` on; `free` is where its last use ends."""

    first_row: int
    free: Mark | None = None


class StagedQueue:
    """Implements `CopyQueue`.

    host: uint8 [num_host_blocks, row bytes], or None if no block goes to the host. staging: uint8
    [2 x rows of a half, row bytes], on the device, which `gatherer` reads and writes. Rows of
    another type are copied as well.
    """

    def __init__(
        self, gatherer: Gatherer, host: Tensor | None, staging: Tensor, streams: Streams
    ) -> None:
        self._gatherer = gatherer
        self._host = host
        self._staging = staging
        self._streams = streams
        self._half_rows = len(staging) // 2
        self._halves = [StagingHalf(0), StagingHalf(self._half_rows)]

    @property
    def computing(self) -> Stream:
        return self._streams.computing

    def begin(self) -> None:
        self._streams.kernels.wait(self._streams.computing.mark())

    def mark(self) -> Mark:
        """Return the end of all copies so far; later ones to or from the host begin after it."""
        self._streams.copies.wait(self._streams.kernels.mark())
        return self._streams.copies.mark()

    def copy(self, batch: CopyBatch) -> list[CopiedBlocks]:
        if batch.kind is CopyKind.FORK:
            return [self._fork(batch)]
        assert self._host is not None
        copy = self._copy_out if batch.kind is CopyKind.OUT else self._copy_in
        return [copy(self._host, part) for part in _by_host_row(batch, self._half_rows)]

    def _fork(self, batch: CopyBatch) -> CopiedBlocks:
        kernels = self._streams.kernels
        kernels.launch(partial(self._gatherer.fork, batch.sources, batch.targets))
        return CopiedBlocks(batch.targets, kernels.mark())

    def _copy_out(self, host: Tensor, batch: CopyBatch) -> CopiedBlocks:
        _, kernels, copies = self._streams
        half = self._take_half(kernels)
        kernels.launch(partial(self._gatherer.gather, batch.sources, half.first_row))
        gathered = kernels.mark()
        copies.wait(gathered)
        for row, first, length in runs(batch.targets):
            staged = self._staging[half.first_row + row :][:length]
            copies.launch(partial(host[first : first + length].copy_, staged, non_blocking=True))
        half.free = copies.mark()
        return CopiedBlocks(batch.sources, gathered)

    def _copy_in(self, host: Tensor, batch: CopyBatch) -> CopiedBlocks:
        _, kernels, copies = self._streams
        half = self._take_half(copies)
        for row, first, length in runs(batch.sources):
            staged = self._staging[half.first_row + row :][:length]
            copies.launch(partial(staged.copy_, host[first : first + length], non_blocking=True))
        kernels.wait(copies.mark())
        kernels.launch(partial(self._gatherer.scatter, batch.targets, half.first_row))
        half.free = kernels.mark()
        return CopiedBlocks(batch.targets, half.free)

    def _take_half(self, user: Stream) -> StagingHalf:
        """Return the half that was used longest ago, for `user` to write."""
        self._halves.reverse()
        half = self._halves[0]
        if half.free is not None:
            user.wait(half.free)
        return half


def build_staged_queue(store: KVStore, device: torch.device) -> StagedQueue:
    """Return the queue of a GPU, with staging memory of `staging_bytes`."""
    num_rows = 0 if store.host is None else 2 * half_rows(len(store.host), store.row_bytes)
    staging = torch.empty((num_rows, store.row_bytes), dtype=torch.uint8, device=device)
    gatherer = build_gatherer(store.tensors, staging)
    return StagedQueue(gatherer, store.host, staging, gpu_streams(device))


def gpu_streams(device: torch.device) -> Streams:
    """Return the stream of steps of a GPU, and two new ones."""
    return Streams(
        CUDAStream(torch.cuda.current_stream(device)),
        CUDAStream(torch.cuda.Stream(device)),  # type: ignore[no-untyped-call]
        CUDAStream(torch.cuda.Stream(device)),  # type: ignore[no-untyped-call]
    )


def build_gatherer(tensors: Sequence[Tensor], staging: Tensor) -> Gatherer:
    """Return the Triton kernel if it runs, otherwise torch's operations, several per tensor."""
    why_not = why_not_device(staging.device)
    if why_not is None:
        from quire.models.kv.triton.gatherer import TritonGatherer

        return TritonGatherer(tensors, staging)
    logger.info("blocks are gathered for the host tensor by tensor: %s", why_not)
    return TorchGatherer(tensors, staging)


def half_rows(num_host_blocks: int, row_bytes: int) -> int:
    """Return the rows of a half: one at least, and no more than the host has."""
    return min(max(HALF_BYTES // row_bytes, 1), num_host_blocks)


def staging_bytes(num_host_blocks: int, row_bytes: int) -> int:
    """Return the bytes of both halves for so many blocks of the host, of `row_bytes` each."""
    return 2 * half_rows(num_host_blocks, row_bytes) * row_bytes if num_host_blocks else 0


def _by_host_row(batch: CopyBatch, max_rows: int) -> Iterator[CopyBatch]:
    """Yield the copies in the order of the host's blocks, so that many are neighbours, in parts of
    up to `max_rows`. The order is free, as none touches what another writes."""
    pairs = list(zip(batch.sources, batch.targets, strict=True))
    pairs.sort(key=lambda pair: pair[1 if batch.kind is CopyKind.OUT else 0])
    for first in range(0, len(pairs), max_rows):
        part = pairs[first : first + max_rows]
        yield CopyBatch(batch.kind, [pair[0] for pair in part], [pair[1] for pair in part])


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (index, first row, length) of each run of neighbours in `rows`."""
    first = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[first] + end - first:
            yield first, rows[first], end - first
            first = end
