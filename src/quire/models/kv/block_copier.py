"""Copies blocks within the device and between it and the host, while the device computes.

Copies begin after what is computed so far, and what is computed next waits for those that it needs:
blocks that are swapped in or forked, and blocks that are swapped out and that a request of the step
gets anew. Other blocks go out during the step.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from quire.cache.block_copies import BlockCopy, CopyBatch, CopyKind, CopyTime, copy_batches
from quire.models.kv.copy_queue import CopiedBlocks, CopyQueue, SyncCopyQueue
from quire.models.kv.kv_store import KVStore
from quire.models.kv.staged_queue import build_staged_queue
from quire.models.kv.streams import Mark


class Interval(NamedTuple):
    """The time between two marks; copies of `num_blocks` lie between them."""

    first: Mark
    last: Mark
    num_blocks: int = 0

    @property
    def seconds(self) -> float:
        return self.last.seconds_since(self.first)


@dataclass(slots=True)
class BlockCopier:
    """Copies the blocks of one KV store.

    leaving: parts of copies to the host that may still read their blocks of the device.
    copying: copies between device and host whose time was not told yet.
    stalls: the intervals in which computing waits for copies, until they are told.
    """

    queue: CopyQueue
    leaving: list[CopiedBlocks] = field(default_factory=list)
    copying: list[Interval] = field(default_factory=list)
    stalls: list[Interval] = field(default_factory=list)

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        """Start the copies, in order, before a step is computed.

        `new_blocks` are those that the step's requests get anew, and may overwrite.
        """
        self.leaving = [part for part in self.leaving if not part.mark.is_reached]
        if not copies and not self.leaving:
            return
        computing, overwritten = self.queue.computing, set(new_blocks)
        before = computing.mark()
        if copies:
            self._copy_all(copies, overwritten)
        for part in self.leaving:
            if not overwritten.isdisjoint(part.blocks):
                computing.wait(part.mark)
        self.stalls.append(Interval(before, computing.mark()))

    def take_copy_time(self) -> CopyTime:
        """Return the time of the copies and stalls that are over and were not told of yet."""
        copied, self.copying = _split_ended(self.copying)
        stalls, self.stalls = _split_ended(self.stalls)
        return CopyTime(
            sum(interval.num_blocks for interval in copied),
            sum(interval.seconds for interval in copied),
            sum(interval.seconds for interval in stalls),
        )

    def _copy_all(self, copies: Sequence[BlockCopy], new_blocks: set[int]) -> None:
        self.queue.begin()
        for batch in copy_batches(copies):
            first = self.queue.mark()
            if batch.kind is CopyKind.OUT:
                for urgency in _urgent_first(batch, new_blocks):
                    self.leaving += self.queue.copy(urgency)
            else:
                self.queue.computing.wait(self.queue.copy(batch)[-1].mark)
            if batch.kind is not CopyKind.FORK:
                self.copying.append(Interval(first, self.queue.mark(), len(batch.sources)))


def build_block_copier(store: KVStore, device: torch.device) -> BlockCopier:
    """Return the copier of a store's blocks on `device`; on a GPU that takes staging memory."""
    if device.type == "cpu":
        return BlockCopier(SyncCopyQueue(store.tensors, store.host_tensors))
    return BlockCopier(build_staged_queue(store, device))


def _urgent_first(batch: CopyBatch, new_blocks: set[int]) -> Iterator[CopyBatch]:
    """Yield the blocks that the step gets anew, then the others; either may be missing."""
    pairs = list(zip(batch.sources, batch.targets, strict=True))
    for is_urgent in (True, False):
        part = [pair for pair in pairs if (pair[0] in new_blocks) is is_urgent]
        if part:
            yield CopyBatch(batch.kind, [pair[0] for pair in part], [pair[1] for pair in part])


def _split_ended(intervals: list[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Return the intervals that are over, and the others; each is asked once."""
    split: tuple[list[Interval], list[Interval]] = ([], [])
    for interval in intervals:
        split[0 if interval.last.is_reached else 1].append(interval)
    return split
