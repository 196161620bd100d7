"""The places where snapshots of states are taken."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class SnapshotKind(IntEnum):
    """The reason of a snapshot. A rung of the ladder, 2**n blocks before the end of a prompt, is of
    the kind LADDER + n."""

    PROMPT_END = 0
    OUTPUT = 1
    JUNCTION = 2
    INTERVAL = 3
    LADDER = 4


class SnapshotPlace(NamedTuple):
    """A place after the first `end` tokens of a request, and the kind of its snapshot."""

    end: int
    kind: int


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The places where a request leaves snapshots, always at a border of blocks.

    - prompt_ends: the last borders of its prompt: the next turn of a conversation goes on there.
    - junctions: the end of what the KV cache holds of its prompt, where the snapshot is missing:
      prompts part there (Marconi, arXiv 2411.19379).
    - outputs: the last border of its output so far, in place of the one before.
    - ladder: 1, 2, 4 ... blocks before the last border of its prompt, up to so many tokens before
      it: the next prompt may have another end. 0 for none.
    - interval: so many tokens apart, rounded up to whole blocks; 0 for none.
    - gain_weight: the weight of the tokens that a snapshot is expected to save, beside how recently
      it was used, when one must be evicted. 0: the least recently used is evicted.
    """

    prompt_ends: bool = True
    junctions: bool = True
    outputs: bool = True
    ladder: int = 4096
    interval: int = 0
    gain_weight: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("interval", self.interval), ("ladder", self.ladder)):
            if value < 0:
                raise ValueError(f"the {name} of snapshots is {value}, must be 0 or more")

    def wanted(
        self, num_tokens: int, num_found: int, num_kv_found: int, *, block_size: int
    ) -> list[SnapshotPlace]:
        """Return the places where a request of `num_tokens` leaves snapshots, in order. Its states
        are found after `num_found` of them, and its K and V of `num_kv_found`.
        """
        kinds: dict[int, int] = {}
        last = (num_tokens - 1) // block_size
        if self.interval:
            apart = -(-self.interval // block_size)
            for block in range(apart, num_tokens // block_size + 1, apart):
                kinds[block] = SnapshotKind.INTERVAL
        for rung in range(self.num_rungs(block_size)):
            kinds[last - (1 << rung)] = SnapshotKind.LADDER + rung
        if self.junctions:
            kinds[min(num_kv_found // block_size, last)] = SnapshotKind.JUNCTION
        if self.prompt_ends:
            # An equal prompt computes its last token; a longer one goes on after it.
            kinds[last] = kinds[num_tokens // block_size] = SnapshotKind.PROMPT_END
        return [
            SnapshotPlace(block * block_size, kinds[block])
            for block in sorted(kinds)
            if block * block_size > num_found
        ]

    def num_rungs(self, block_size: int) -> int:
        """Return the number of rungs of the ladder before the end of a long prompt."""
        return (self.ladder // block_size).bit_length()


PLANNED = SnapshotPolicy()
