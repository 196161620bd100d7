"""The places where snapshots of states are taken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """The places where a request leaves snapshots, always at a border of blocks.

    - prompt_ends: the last borders of its prompt: the next turn of a conversation goes on there.
    - junctions: the end of what the KV cache holds of its prompt, where the snapshot is missing:
      prompts part there (Marconi, arXiv 2411.19379).
    - outputs: the last border of its output so far, in place of the one before.
    - interval: so many tokens apart, rounded up to whole blocks; 0 for none.
    - gain_weight: the weight of the tokens that a snapshot saves, beside how recently it was used,
      when one must be evicted. 0: the least recently used is evicted.
    """

    prompt_ends: bool = True
    junctions: bool = True
    outputs: bool = True
    interval: int = 0
    gain_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.interval < 0:
            raise ValueError(f"the interval of snapshots is {self.interval}, must be 0 or more")

    def wanted(
        self, num_tokens: int, num_found: int, num_kv_found: int, *, block_size: int
    ) -> list[int]:
        """Return the numbers of tokens after which a request of `num_tokens` leaves snapshots, in
        order. Its states are found after `num_found` of them, and its K and V of `num_kv_found`.
        """
        places: set[int] = set()
        if self.prompt_ends:
            # An equal prompt computes its last token; a longer one goes on after it.
            places |= {(num_tokens - 1) // block_size, num_tokens // block_size}
        if self.junctions:
            places.add(min(num_kv_found, num_tokens - 1) // block_size)
        if self.interval:
            apart = -(-self.interval // block_size)
            places |= set(range(apart, num_tokens // block_size + 1, apart))
        return sorted(place * block_size for place in places if place * block_size > num_found)


PLANNED = SnapshotPolicy()
