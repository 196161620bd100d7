"""Copies blocks within the device and between it and the host, while the device computes.

Copies run in order on a queue of their own. They begin after what is computed so far, and what is
computed next waits for those that it needs: blocks that are swapped in or forked, and blocks that
are swapped out and that a request of the step gets anew. Other blocks go out during the step.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyBatch, CopyKind, CopyTime, copy_batches
from quire.models.kv.kv_store import KVStore


class Mark(Protocol):
    """A point in the order of copies, or in that of computing."""

    @property
    def is_reached(self) -> bool: ...

    def hold_computing(self) -> None:
        """Let what is computed from now on wait for it."""

    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two marks that are reached."""


class CopyQueue(Protocol):
    """A queue of copies beside the computing."""

    def begin(self) -> None:
        """Let what is copied from now on wait for all that is computed so far."""

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        """Copy blocks `blocks.sources` of `source` to `blocks.targets` of `target`."""

    def mark(self) -> Mark:
        """Return the end of all that is copied so far."""

    def mark_computing(self) -> Mark:
        """Return the end of all that is computed so far, and of what computing now waits for."""


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

    leaving: blocks of the device that copies may still read, and where those copies end.
    copying: copies between device and host whose time was not told yet.
    stalls: the intervals in which computing waits for copies, until they are told.
    """

    store: KVStore
    queue: CopyQueue
    leaving: dict[int, Mark] = field(default_factory=dict)
    copying: list[Interval] = field(default_factory=list)
    stalls: list[Interval] = field(default_factory=list)

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        """Start the copies, in order, before a step is computed.

        `new_blocks` are those that the step's requests get anew, and may overwrite.
        """
        self.leaving = {block: mark for block, mark in self.leaving.items() if not mark.is_reached}
        if not copies and self.leaving.keys().isdisjoint(new_blocks):
            return
        before = self.queue.mark_computing()
        if copies:
            self._copy_all(copies, set(new_blocks))
        for block in new_blocks:
            mark = self.leaving.pop(block, None)
            if mark is not None:
                mark.hold_computing()
        self.stalls.append(Interval(before, self.queue.mark_computing()))

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
                for part in _urgent_first(batch, new_blocks):
                    last = self._copy(part)
                    self.leaving.update(dict.fromkeys(part.sources, last))
            else:
                last = self._copy(batch)
                last.hold_computing()
            if batch.kind is not CopyKind.FORK:
                self.copying.append(Interval(first, last, len(batch.sources)))

    def _copy(self, batch: CopyBatch) -> Mark:
        tensors = self.store.tensors
        for kept, host in zip(tensors, self.store.host or tensors, strict=True):
            source = host if batch.kind is CopyKind.IN else kept
            target = host if batch.kind is CopyKind.OUT else kept
            self.queue.copy(target, source, batch)
        return self.queue.mark()


def build_block_copier(store: KVStore, device: torch.device) -> BlockCopier:
    return BlockCopier(store, SideStream(device) if device.type == "cuda" else AtOnce())


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


@dataclass(frozen=True, slots=True)
class Now:
    """The mark of a queue whose copies are done at once."""

    time_s: float

    @property
    def is_reached(self) -> bool:
        return True

    def hold_computing(self) -> None:
        """There is nothing to wait for."""

    def seconds_since(self, earlier: Mark) -> float:
        return self.time_s - earlier.time_s if isinstance(earlier, Now) else 0.0


class AtOnce:
    """The queue of a device that is the host: each copy is done at once."""

    def begin(self) -> None:
        """Do nothing: all that was computed is done."""

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        rows = source.index_select(0, torch.tensor(blocks.sources))
        target.index_copy_(0, torch.tensor(blocks.targets), rows)

    def mark(self) -> Mark:
        return Now(time.monotonic())

    def mark_computing(self) -> Mark:
        return self.mark()


@dataclass(frozen=True, slots=True)
class Reached:
    """A mark that is a CUDA event."""

    event: torch.cuda.Event

    @property
    def is_reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def hold_computing(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)

    def seconds_since(self, earlier: Mark) -> float:
        if not isinstance(earlier, Reached):
            return 0.0
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class SideStream:
    """The queue of a GPU, a stream of its own. Runs of neighbouring blocks are one copy each, from
    and to pinned memory of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        with torch.cuda.stream(self._stream):
            for to, since, length in runs(blocks):
                target[to : to + length].copy_(source[since : since + length], non_blocking=True)

    def mark(self) -> Mark:
        return _mark(self._stream)

    def mark_computing(self) -> Mark:
        return _mark(torch.cuda.current_stream(self._device))


def _mark(stream: torch.cuda.Stream) -> Mark:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return Reached(event)


def runs(blocks: CopyBatch) -> Iterator[tuple[int, int, int]]:
    """Yield (first target, first source, length) of neighbours at both ends, in the batch's order.

    The order matters, since a block may be read and then written. Within the device runs might
    overlap, and so every block is a run.
    """
    pairs = list(zip(blocks.targets, blocks.sources, strict=True))
    first = 0
    for end in range(1, len(pairs) + 1):
        target, source = pairs[first]
        length = end - first
        is_alone = blocks.kind is CopyKind.FORK or end == len(pairs)
        if is_alone or pairs[end] != (target + length, source + length):
            yield target, source, length
            first = end
