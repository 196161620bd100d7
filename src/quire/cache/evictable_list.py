"""The evictable blocks in the order of their eviction: a doubly linked list for each rank, all in
two arrays of block ids.

Append, removal from the middle and taking the oldest are O(1), and nothing is allocated. Measured,
it is twice as fast as `OrderedDict`, and no slower than linked objects (decision 0007).
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum


class EvictionRank(IntEnum):
    """The ranks of evictable blocks; those of a lower one are evicted first. ASKED are blocks that
    a client wants to be kept, EXPECTED those that a request is about to find."""

    PLAIN = 0
    ASKED = 1
    EXPECTED = 2


class EvictableList:
    """An ordered set of block ids below `num_blocks`. Entry 0 and those behind the last block are
    the sentinels of the ranks: the null block is never evictable.
    """

    def __init__(self, num_blocks: int) -> None:
        self._heads = (0, num_blocks, num_blocks + 1)
        self._next = [0] * num_blocks + [num_blocks, num_blocks + 1]
        self._previous = [0] * num_blocks + [num_blocks, num_blocks + 1]
        self._rank_of = bytearray(num_blocks)
        self._lengths = [0] * len(EvictionRank)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.block_ids())

    def num_of(self, rank: EvictionRank) -> int:
        """Return the number of blocks of a rank above PLAIN."""
        return self._lengths[rank]

    def block_ids(self) -> list[int]:
        """Return the block ids, the one to evict next first."""
        return [each for rank in EvictionRank for each in self.ids_of(rank)]

    def ids_of(self, rank: EvictionRank) -> list[int]:
        """Return the block ids of a rank, the one to evict next first. It ends even where accounts
        that do not balance have made a ring of some."""
        following, head = self._next, self._heads[rank]
        block_ids: list[int] = []
        block_id = following[head]
        while block_id != head and len(block_ids) <= self._length:
            block_ids.append(block_id)
            block_id = following[block_id]
        return block_ids

    def append(self, block_ids: Iterable[int]) -> None:
        """Append block ids that are not in the list, in the order of later eviction."""
        self._insert(self._previous[0], block_ids, EvictionRank.PLAIN)

    def append_to(self, rank: EvictionRank, block_ids: Iterable[int]) -> None:
        """Append block ids to those of a rank."""
        self._insert(self._previous[self._heads[rank]], block_ids, rank)

    def prepend(self, block_ids: Iterable[int]) -> None:
        """Let block ids that are not in the list be evicted before all others, in this order."""
        self._insert(0, block_ids, EvictionRank.PLAIN)

    def _insert(self, last: int, block_ids: Iterable[int], rank: EvictionRank) -> None:
        """Insert block ids behind the entry `last` of a rank."""
        following, previous, num_before = self._next, self._previous, self._length
        after = following[last]
        for block_id in block_ids:
            following[last] = block_id
            previous[block_id] = last
            last = block_id
            self._length += 1
            if rank:
                self._rank_of[block_id] = rank
        following[last] = after
        previous[after] = last
        self._lengths[rank] += self._length - num_before

    def remove(self, block_id: int) -> None:
        """Remove a block id that is in the list."""
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1
        rank = self._rank_of[block_id]
        self._lengths[rank] -= 1
        if rank:
            self._rank_of[block_id] = 0

    def rank_of(self, block_id: int) -> EvictionRank:
        """Return the rank of a block id that is in the list."""
        return EvictionRank(self._rank_of[block_id])

    def pop_oldest(self) -> int:
        """Remove and return the block id to evict next. The list must not be empty."""
        oldest = self._next[0] or next(
            self._next[head] for head in self._heads[1:] if self._next[head] != head
        )
        self.remove(oldest)
        return oldest
