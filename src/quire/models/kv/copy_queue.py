"""Queues of block copies: the interface, and the queue of a device that is the host."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.cache.block_copies import CopyBatch, CopyKind
from quire.models.kv.streams import HostStream, Mark, Stream

LARGE_ROW_BYTES = 1 << 20
"""Rows of as many bytes are copied one by one: all at once would take as much memory again."""


class CopiedBlocks(NamedTuple):
    """Blocks of the device that copies have read, or written, where `mark` is reached."""

    blocks: list[int]
    mark: Mark


class CopyQueue(Protocol):
    """Block copies that overlap computation, in order."""

    @property
    def computing(self) -> Stream:
        """The stream on which steps are computed."""
        ...

    def begin(self) -> None:
        """Let what is copied from now on wait for all that is computed so far."""

    def copy(self, batch: CopyBatch) -> list[CopiedBlocks]:
        """Copy blocks, and return when those of the device may be written, or read if they are what
        is written. Parts are reached in their order."""
        ...

    def mark(self) -> Mark:
        """Return the end of all copies so far."""


class SyncCopyQueue:
    """The queue of a device that is the host: each copy is done at once, tensor by tensor.

    device, host: as many tensors each, [number of rows, ...], alike but for that number.
    """

    def __init__(self, device: Sequence[Tensor], host: Sequence[Tensor]) -> None:
        self._device = device
        self._host = host
        self._stream = HostStream()

    @property
    def computing(self) -> Stream:
        return self._stream

    def begin(self) -> None:
        """Do nothing: all that was computed is done."""

    def copy(self, batch: CopyBatch) -> list[CopiedBlocks]:
        sources = self._host if batch.kind is CopyKind.IN else self._device
        targets = self._host if batch.kind is CopyKind.OUT else self._device
        read, written = torch.tensor(batch.sources), torch.tensor(batch.targets)
        for source, target in zip(sources, targets, strict=True):
            if source[0].nbytes < LARGE_ROW_BYTES:
                target.index_copy_(0, written, source.index_select(0, read))
                continue
            for row, to in zip(batch.sources, batch.targets, strict=True):
                target[to].copy_(source[row])
        blocks = batch.sources if batch.kind is CopyKind.OUT else batch.targets
        return [CopiedBlocks(blocks, self.mark())]

    def mark(self) -> Mark:
        return self._stream.mark()
