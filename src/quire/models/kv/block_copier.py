"""Blocks moved within the device and between it and the host, beside the computing.

Copies run in their own order on a queue. They begin after what is computed so far, and what is
computed next waits for those that it needs: blocks that come in or are copied, and blocks that go
out while a request of the step gets them anew. Other blocks go out while the step is computed.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyBatch, CopyKind, copy_batches
from quire.models.kv.kv_store import KVStore


class Mark(Protocol):
    """A point in the order of copies."""

    @property
    def is_reached(self) -> bool: ...

    def hold_computing(self) -> None:
        """What is computed from now on waits for it."""

    def seconds_since(self, earlier: "Mark") -> float:
        """Waits until it is reached."""


class CopyQueue(Protocol):
    def begin(self) -> None:
        """What is copied from now on waits for all that is computed so far."""

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        """Blocks `blocks.sources` of `source` to `blocks.targets` of `target`."""

    def mark(self) -> Mark: ...


@dataclass(slots=True)
class Mover:
    """`leaving`: blocks of the device that copies may still read, and where those end."""

    store: KVStore
    queue: CopyQueue
    leaving: dict[int, Mark] = field(default_factory=dict)

    def move(self, moves: Sequence[BlockCopy], claimed: Collection[int]) -> Callable[[], float]:
        """In the order of `moves`. `claimed`: what the step's requests get anew, and may write.
        Returns what tells the seconds they took, once they are done."""
        self.leaving = {block: mark for block, mark in self.leaving.items() if not mark.is_reached}
        taken = _no_time
        if moves:
            self.queue.begin()
            taken = self._copy_all(moves, set(claimed))
        for block in claimed:
            mark = self.leaving.pop(block, None)
            if mark is not None:
                mark.hold_computing()
        return taken

    def _copy_all(self, moves: Sequence[BlockCopy], claimed: set[int]) -> Callable[[], float]:
        first = last = self.queue.mark()
        for batch in copy_batches(moves):
            if batch.kind is CopyKind.OUT:
                for part in _urgent_first(batch, claimed):
                    last = self._copy(part)
                    self.leaving.update(dict.fromkeys(part.sources, last))
            else:
                last = self._copy(batch)
                last.hold_computing()
        return lambda: last.seconds_since(first)

    def _copy(self, batch: CopyBatch) -> Mark:
        tensors = self.store.tensors
        for kept, host in zip(tensors, self.store.host or tensors, strict=True):
            source = host if batch.kind is CopyKind.IN else kept
            target = host if batch.kind is CopyKind.OUT else kept
            self.queue.copy(target, source, batch)
        return self.queue.mark()


def build_mover(store: KVStore, device: torch.device) -> Mover:
    return Mover(store, SideStream(device) if device.type == "cuda" else AtOnce())


def _urgent_first(batch: CopyBatch, claimed: set[int]) -> Iterator[CopyBatch]:
    """In two, of which either may be missing."""
    pairs = list(zip(batch.sources, batch.targets, strict=True))
    for is_urgent in (True, False):
        part = [pair for pair in pairs if (pair[0] in claimed) is is_urgent]
        if part:
            yield CopyBatch(batch.kind, [pair[0] for pair in part], [pair[1] for pair in part])


def _no_time() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Now:
    """A moment by which all is done."""

    time_s: float

    @property
    def is_reached(self) -> bool:
        return True

    def hold_computing(self) -> None:
        """There is nothing to wait for."""

    def seconds_since(self, earlier: Mark) -> float:
        return self.time_s - earlier.time_s if isinstance(earlier, Now) else 0.0


class AtOnce:
    """For a device that is the host."""

    def begin(self) -> None:
        """All that was computed is done."""

    def copy(self, target: Tensor, source: Tensor, blocks: CopyBatch) -> None:
        rows = source.index_select(0, torch.tensor(blocks.sources))
        target.index_copy_(0, torch.tensor(blocks.targets), rows)

    def mark(self) -> Mark:
        return Now(time.monotonic())


@dataclass(frozen=True, slots=True)
class Reached:
    """A CUDA event on the side stream."""

    event: torch.cuda.Event

    @property
    def is_reached(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def hold_computing(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)

    def seconds_since(self, earlier: Mark) -> float:
        self.event.synchronize()
        if not isinstance(earlier, Reached):
            return 0.0
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class SideStream:
    """Of a GPU: runs of neighbouring blocks go as one copy each, the host's from and to pinned
    memory."""

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
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return Reached(event)


def runs(blocks: CopyBatch) -> Iterator[tuple[int, int, int]]:
    """(first target, first source, length) of what lies side by side at both ends, in the order of
    the batch: a block may be read and then written. Within the device runs might overlap, and so
    every block is one."""
    pairs = list(zip(blocks.targets, blocks.sources, strict=True))
    first = 0
    for end in range(1, len(pairs) + 1):
        target, source = pairs[first]
        length = end - first
        is_alone = blocks.kind is CopyKind.FORK or end == len(pairs)
        if is_alone or pairs[end] != (target + length, source + length):
            yield target, source, length
            first = end
