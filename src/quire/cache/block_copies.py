"""Copies of blocks, and of states of recurrent layers, which run before a step, in order."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple


class CopyKind(StrEnum):
    """A copy leads within the device, to the host or from it; their blocks and states are numbered
    apart."""

    OUT = "out"
    IN = "in"
    FORK = "copy"
    """A copy from one block of the device to another, for a request that forks from another one."""
    STATE_OUT = "state_out"
    STATE_IN = "state_in"

    @property
    def is_of_state(self) -> bool:
        """Whether a state of recurrent layers is copied, not a block."""
        return self not in BLOCK_KINDS


BLOCK_KINDS = (CopyKind.OUT, CopyKind.IN, CopyKind.FORK)
"""The kinds of copies of blocks."""


class BlockCopy(NamedTuple):
    """The copy of one block, in all layers of its group, or of one state of all recurrent layers.
    `source` and `target` are ids of blocks or of states."""

    kind: CopyKind
    source: int
    target: int


class CopyBatch(NamedTuple):
    """Independent copies: none reads or writes a block or state that another writes."""

    kind: CopyKind
    sources: list[int]
    targets: list[int]


class CopyTime(NamedTuple):
    """The time of copies that are done: `num_blocks` were copied between device and host in
    `copy_s` seconds, `num_states` states in `state_copy_s`, and steps waited `stall_s` seconds for
    copies, perhaps for others than these. Copies within the device count in `stall_s` alone.
    """

    num_blocks: int = 0
    copy_s: float = 0.0
    stall_s: float = 0.0
    num_states: int = 0
    state_copy_s: float = 0.0

    def with_states(self, other: "CopyTime") -> "CopyTime":
        """Return this time of copies of blocks with the `other` one of copies of states."""
        return self._replace(
            stall_s=self.stall_s + other.stall_s,
            num_states=other.num_states,
            state_copy_s=other.state_copy_s,
        )


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
