"""The longest cached prefix that every layer group still has.

A full group must have all of its blocks. A group with a window or chunks needs only the blocks that
the next token attends to, so it may have the blocks of a long prefix but not those of a shorter
one: these groups are queried in turn, each for at most the prefix that the others allow, until all
agree. A block counts only if its content equals the chain's; an equal digest is not enough.
"""

from collections.abc import Sequence
from typing import Protocol

from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK
from quire.cache.chain import Chain, Content
from quire.cache.spec import AttentionPattern


class Lookup(Protocol):
    """A pool in which blocks are found by their keys."""

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks of the leading keys that are here, up to the first that is not."""
        ...

    def contents(self, keys: Sequence[bytes]) -> list[Content]:
        """Return the contents of the blocks under these keys, which must be cached."""
        ...

    def content_under(self, key: bytes) -> Content | None:
        """Return the content of the block under `key`, or None if it is not cached."""
        ...


def find_prefix(
    pool: Lookup,
    groups: Sequence[AttentionPattern],
    chain: Chain,
    max_blocks: int,
    *,
    block_size: int,
) -> tuple[list[int], ...]:
    """Return by group the cached blocks of as many of the chain's first `max_blocks` as all groups
    have, and the null block where a group needs none. All lists are equally long.
    """
    length = max_blocks
    found: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        if group.size is None:
            keys = [group_key(digest, index) for digest in chain.digests[:length]]
            block_ids = pool.find(keys)
            length = chain.num_matching(pool.contents(keys[: len(block_ids)]))
            found[index] = block_ids[:length]
    windowed = [
        _Group(pool, chain, index, group, block_size)
        for index, group in enumerate(groups)
        if group.size is not None
    ]
    length = _agreed(windowed, length)
    for each in windowed:
        found[each.index] = each.blocks(length)
    return tuple(found[index][:length] for index in range(len(groups)))


class _Group:
    """One group that needs only the last tokens."""

    def __init__(
        self, pool: Lookup, chain: Chain, index: int, pattern: AttentionPattern, block_size: int
    ) -> None:
        self.index = index
        self._pool = pool
        self._chain = chain
        self._retention = pattern
        self._block_size = block_size

    def longest(self, max_blocks: int) -> int:
        """Return the most blocks, up to `max_blocks`, after which all that is needed is here.

        Where a needed block is missing, every length beyond it needs it too, down to the one that
        ends before it.
        """
        length = max_blocks
        while length > 0:
            missing = next(
                (
                    index
                    for index in range(length - 1, self._first_needed(length) - 1, -1)
                    if not self._has(index)
                ),
                None,
            )
            if missing is None:
                break
            length = missing
        return length

    def blocks(self, num_blocks: int) -> list[int]:
        first = self._first_needed(num_blocks)
        digests = self._chain.digests[first:num_blocks]
        return [NULL_BLOCK] * first + self._pool.find([group_key(d, self.index) for d in digests])

    def _has(self, index: int) -> bool:
        content = self._pool.content_under(group_key(self._chain.digests[index], self.index))
        return content is not None and self._chain.matches(content, index)

    def _first_needed(self, num_blocks: int) -> int:
        return self._retention.first_needed(num_blocks * self._block_size) // self._block_size


def _agreed(groups: Sequence[_Group], max_blocks: int) -> int:
    length = max_blocks
    while length > 0:
        shorter = min((group.longest(length) for group in groups), default=length)
        if shorter == length:
            break
        length = shorter
    return length
