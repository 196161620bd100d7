"""Queues of block copies: the interface, and the queue of a device that is the host."""

from typing import NamedTuple, Protocol

import torch

from quire.cache.block_copies import CopyBatch, CopyKind
from quire.models.kv.kv_store import KVStore
from quire.models.kv.streams import HostStream, Mark, Stream


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
    """The queue of a device that is the host: each copy is done at once, tensor by tensor."""

    def __init__(self, store: KVStore) -> None:
        self._device = store.tensors
        self._host = store.host_tensors
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
            target.index_copy_(0, written, source.index_select(0, read))
        blocks = batch.sources if batch.kind is CopyKind.OUT else batch.targets
        return [CopiedBlocks(blocks, self.mark())]

    def mark(self) -> Mark:
        return self._stream.mark()
