"""The evictable blocks in the order of their eviction: a doubly linked list in two arrays of block
ids.

Append, removal from the middle and taking the oldest are O(1), and nothing is allocated. Measured,
it is twice as fast as `OrderedDict`, and no slower than linked objects (decision 0007).
"""

from collections.abc import Iterable, Iterator


class EvictableList:
    """An ordered set of block ids below `num_blocks`. Entry 0 is the sentinel: the null block is
    never evictable.
    """

    def __init__(self, num_blocks: int) -> None:
        self._next = [0] * num_blocks
        self._previous = [0] * num_blocks
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.block_ids())

    def block_ids(self) -> list[int]:
        """Return the block ids, the one to evict next first."""
        following, block_ids = self._next, []
        block_id = following[0]
        while block_id:
            block_ids.append(block_id)
            block_id = following[block_id]
        return block_ids

    def append(self, block_ids: Iterable[int]) -> None:
        """Append block ids that are not in the list, in the order of later eviction."""
        following, previous = self._next, self._previous
        last = previous[0]
        for block_id in block_ids:
            following[last] = block_id
            previous[block_id] = last
            last = block_id
            self._length += 1
        following[last] = 0
        previous[0] = last

    def remove(self, block_id: int) -> None:
        """Remove a block id that is in the list."""
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1

    def pop_oldest(self) -> int:
        """Remove and return the block id to evict next. The list must not be empty."""
        oldest = self._next[0]
        self.remove(oldest)
        return oldest
