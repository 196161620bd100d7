"""What the cache asks to be done with the contents of blocks, in this order, before a step runs."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class MoveKind(StrEnum):
    """Between the device's blocks and the host's, which are numbered apart."""

    OUT = "out"
    IN = "in"
    COPY = "copy"
    """From one block of the device to another."""


class Move(NamedTuple):
    """One block, in all layers of its group."""

    kind: MoveKind
    source: int
    target: int


class MoveBatch(NamedTuple):
    """Moves that may be done at once: none reads or writes what another of them writes."""

    kind: MoveKind
    sources: list[int]
    targets: list[int]


def batches(moves: Iterable[Move]) -> Iterator[MoveBatch]:
    """The moves in as few batches as their order allows."""
    batch: MoveBatch | None = None
    written: set[int] = set()
    for kind, source, target in moves:
        clashes = target in written or (kind is MoveKind.COPY and source in written)
        if batch is None or batch.kind is not kind or clashes:
            if batch is not None:
                yield batch
            batch, written = MoveBatch(kind, [], []), set()
        batch.sources.append(source)
        batch.targets.append(target)
        written.add(target)
    if batch is not None:
        yield batch
