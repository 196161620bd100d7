"""Block copies, which run before a step, in order."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class CopyKind(StrEnum):
    """A copy leads within the device, to the host or from it; their blocks are numbered apart."""

    OUT = "out"
    IN = "in"
    FORK = "copy"
    """A copy from one block of the device to another, for a request that forks from another one."""


class BlockCopy(NamedTuple):
    """The copy of one block, in all layers of its group. `source` and `target` are block ids."""

    kind: CopyKind
    source: int
    target: int


class CopyBatch(NamedTuple):
    """Independent copies: none reads or writes a block that another writes."""

    kind: CopyKind
    sources: list[int]
    targets: list[int]


class CopyTime(NamedTuple):
    """The time of block copies that are done: `num_blocks` were copied between device and host in
    `copy_s` seconds, and steps waited `stall_s` seconds for copies, perhaps for others than these.
    Copies within the device count in `stall_s` alone.
    """

    num_blocks: int = 0
    copy_s: float = 0.0
    stall_s: float = 0.0


def copy_batches(copies: Iterable[BlockCopy]) -> Iterator[CopyBatch]:
    """Yield the copies in as few batches as their order allows."""
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
