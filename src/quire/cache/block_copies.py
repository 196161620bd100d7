"""What the cache asks to be done with the contents of blocks, in this order, before a step runs."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class CopyKind(StrEnum):
    """Between the device's blocks and the host's, which are numbered apart."""

    OUT = "out"
    IN = "in"
    FORK = "copy"
    """From one block of the device to another."""


class BlockCopy(NamedTuple):
    """One block, in all layers of its group."""

    kind: CopyKind
    source: int
    target: int


class CopyBatch(NamedTuple):
    """Moves that may be done at once: none reads or writes what another of them writes."""

    kind: CopyKind
    sources: list[int]
    targets: list[int]


def copy_batches(copies: Iterable[BlockCopy]) -> Iterator[CopyBatch]:
    """The moves in as few batches as their order allows."""
    batch: CopyBatch | None = None
    written: set[int] = set()
    for kind, source, target in copies:
        clashes = target in written or (kind is CopyKind.FORK and source in written)
        if batch is None or batch.kind is not kind or clashes:
            if batch is not None:
                yield batch
            batch, written = CopyBatch(kind, [], []), set()
        batch.sources.append(source)
        batch.targets.append(target)
        written.add(target)
    if batch is not None:
        yield batch
