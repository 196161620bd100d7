"""A prefix miss says why the prefix cache had no more of a prompt. What is kept for it is bounded
by the number of blocks, and an answer costs the same however long the prompt is.
"""

from collections import OrderedDict
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from quire.cache.block_hash import TOKEN_BYTES
from quire.cache.chain import Chain, Content

MAX_COMPARED = 64
"""The maximum number of cached continuations of one prefix that are examined, the newest first."""


class MissKind(StrEnum):
    """The reasons why a prefix was not found; the number that goes with each is said in
    brackets."""

    TOO_SHORT = "too_short"  # not one full block before the last token (tokens)
    DIFFERS = "differs"  # (first token that differs from what is cached)
    EVICTED = "evicted"  # was cached once (first token of it)
    SALT = "salt"  # is cached under another salt or adapter only (first token of it)
    STATE = "state"  # K and V are cached, no snapshot of the states (tokens of K and V)
    NEW = "new"  # nothing like it is known (first token of it)


class PrefixMiss(NamedTuple):
    """The reason of a miss and the number that goes with it."""

    kind: MissKind
    number: int


class PrefixMisses:
    """Follows the blocks of the first layer group and remembers the newest `max_evicted` evicted
    ones.
    """

    def __init__(self, max_evicted: int, block_size: int) -> None:
        self._max_evicted = max_evicted
        self._block_size = block_size
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._after: dict[bytes, dict[bytes, Content]] = {}

    def cached(self, content: Content, parent: bytes) -> None:
        """Note that a block can be found after the block of digest `parent`."""
        self._evicted.pop(content.digest, None)
        self._after.setdefault(parent, {})[content.digest] = content

    def evicted(self, content: Content, parent: bytes) -> None:
        """Note that a block is found no more after the block of digest `parent`."""
        following = self._after.get(parent, {})
        if content.digest in following:
            del following[content.digest]
            if not following:
                del self._after[parent]
        self._evicted[content.digest] = None
        if len(self._evicted) > self._max_evicted:
            self._evicted.popitem(last=False)

    def clear(self) -> None:
        self._evicted.clear()
        self._after.clear()

    def explain(self, chain: Chain, num_tokens: int, num_found: int) -> PrefixMiss | None:
        """Return why a prompt of `num_tokens` found only `num_found`, or None where it found all
        that it may: at least the last token is always computed.
        """
        index, most = num_found // self._block_size, (num_tokens - 1) // self._block_size
        if most == 0:
            return PrefixMiss(MissKind.TOO_SHORT, num_tokens)
        if index >= most:
            return None
        return self._explain(chain, index)

    def _explain(self, chain: Chain, index: int) -> PrefixMiss:
        start, digest = index * self._block_size, chain.digests[index]
        following = self._after.get(chain.parent_digest(index), {})
        if digest in self._evicted or digest in following:  # if in: another group has lost it
            return PrefixMiss(MissKind.EVICTED, start)
        longest = -1
        for content in islice(reversed(following.values()), MAX_COMPARED):
            num_equal = _num_equal(content, chain, index)
            if num_equal == self._block_size:
                return PrefixMiss(MissKind.SALT, start)
            if content.extra.salt == chain.extra(index).salt:  # what others ask is not told
                longest = max(longest, num_equal)
        if longest > 0 or (longest == 0 and index > 0):
            return PrefixMiss(MissKind.DIFFERS, start + longest)
        return PrefixMiss(MissKind.NEW, start)


def _num_equal(content: Content, chain: Chain, index: int) -> int:
    """Return the number of equal leading tokens of two blocks, whatever their salt."""
    tokens, items = chain.tokens(index), chain.extra(index).items
    num_equal = len(tokens) // TOKEN_BYTES
    differing = int.from_bytes(tokens, "little") ^ int.from_bytes(content.tokens, "little")
    if differing:
        lowest_bit = (differing & -differing).bit_length() - 1
        num_equal = lowest_bit // (8 * TOKEN_BYTES)
    others = set(items).symmetric_difference(content.extra.items)
    return min([num_equal, *(max(start, 0) for _, start in others)])
