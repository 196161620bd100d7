"""The longest prefix that every layer group still has.

A full group must have all of its blocks. A group that forgets needs only those that the next token
can see, so that it may honour a long prefix and not a shorter one: the groups are asked in turn,
each for no more than the others allow, until all agree.
"""

from collections.abc import Sequence
from typing import Protocol

from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.spec import Retention


class Lookup(Protocol):
    """Where blocks are found by their keys."""

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the leading keys that are here, up to the first that is not."""
        ...

    def block_of(self, key: bytes) -> int | None: ...


def find_prefix(
    pool: Lookup, groups: Sequence[Retention], hashes: Sequence[bytes], *, block_size: int
) -> tuple[list[int], ...]:
    """By group, the sealed blocks of as many leading `hashes` as all groups can honour, and the
    null block where a group needs none. All lists are equally long.
    """
    length = len(hashes)
    found: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        if group.reach is None:
            found[index] = pool.find([group_key(digest, index) for digest in hashes[:length]])
            length = len(found[index])
    forgetful = [
        _Group(pool, index, group, block_size)
        for index, group in enumerate(groups)
        if group.reach is not None
    ]
    length = _agreed(forgetful, hashes, length)
    for each in forgetful:
        found[each.index] = each.blocks(hashes[:length])
    return tuple(found[index][:length] for index in range(len(groups)))


class _Group:
    """One group that forgets."""

    def __init__(self, pool: Lookup, index: int, retention: Retention, block_size: int) -> None:
        self.index = index
        self._pool = pool
        self._retention = retention
        self._block_size = block_size

    def longest(self, hashes: Sequence[bytes], most: int) -> int:
        """The most blocks, up to `most`, after which all that is needed is here.

        Where a needed block is missing, every length beyond it needs it too, down to the one that
        ends before it.
        """
        length = most
        while length > 0:
            missing = next(
                (
                    index
                    for index in range(length - 1, self._first_needed(length) - 1, -1)
                    if self._block(hashes[index]) is None
                ),
                None,
            )
            if missing is None:
                break
            length = missing
        return length

    def blocks(self, hashes: Sequence[bytes]) -> list[int]:
        first = self._first_needed(len(hashes))
        keys = [group_key(digest, self.index) for digest in hashes[first:]]
        return [NULL_BLOCK] * first + self._pool.find(keys)

    def _block(self, digest: bytes) -> int | None:
        return self._pool.block_of(group_key(digest, self.index))

    def _first_needed(self, num_blocks: int) -> int:
        return self._retention.first_needed(num_blocks * self._block_size) // self._block_size


def _agreed(groups: Sequence[_Group], hashes: Sequence[bytes], most: int) -> int:
    length = most
    while length > 0:
        shorter = min((group.longest(hashes, length) for group in groups), default=length)
        if shorter == length:
            break
        length = shorter
    return length
