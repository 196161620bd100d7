"""The full blocks of one request as a chain: each has its tokens, its extra keys and its parent.

A digest only proposes a block of the pool. The block is shared where the content it was cached with
is this chain's, every block before it included; so a hash that collides costs hits and nothing
else.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

from quire.cache.block_hash import TOKEN_BYTES, TOKEN_CODE, BlockHash
from quire.cache.sharing import NO_KEYS, OPEN, ExtraKeys, SharingTerms, extra_keys


class Content:
    """The content proves the tokens of a cached block. Only `parent` is ever replaced, and only by
    its equal."""

    __slots__ = ("digest", "tokens", "extra", "parent")

    def __init__(
        self, digest: bytes, tokens: bytes, extra: ExtraKeys, parent: "Content | None"
    ) -> None:
        self.digest = digest
        self.tokens = tokens
        self.extra = extra
        self.parent = parent


class Chain:
    """The digests, tokens and extra keys of a request's full blocks. It depends on the tokens
    alone, so it grows with them and outlives a release of the blocks.
    """

    __slots__ = ("sharing", "digests", "_hash", "_block_size", "_tokens", "_extras", "_known")

    def __init__(
        self, block_hash: BlockHash, block_size: int, sharing: SharingTerms = OPEN
    ) -> None:
        self.sharing = sharing
        self.digests: list[bytes] = []
        self._hash = block_hash
        self._block_size = block_size
        self._tokens: list[bytes] = []
        self._extras: list[ExtraKeys] = []
        self._known: list[Content] = []  # of the leading blocks, as they were found or cached

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append the full blocks of `token_ids` that the chain does not have yet."""
        size, first = self._block_size, len(self.digests)
        last = len(token_ids) // size
        if first >= last:
            return
        raw = array(TOKEN_CODE, token_ids[first * size : last * size]).tobytes()
        width = size * TOKEN_BYTES
        blocks = [raw[start : start + width] for start in range(0, len(raw), width)]
        self._tokens += blocks
        digests, digest = self.digests, self._hash.digest
        parent = self.parent_digest(first)
        if self.sharing == OPEN:
            for tokens in blocks:
                parent = digest(parent, tokens, b"")
                digests.append(parent)
            return
        extras = extra_keys(self.sharing, first, last, block_size=size)
        self._extras += extras
        for tokens, extra in zip(blocks, extras, strict=True):
            parent = digest(parent, tokens, extra.encoded())
            digests.append(parent)

    def adopt(self, other: "Chain", num_blocks: int) -> None:
        """Begin with the first `num_blocks` blocks of a chain of equal tokens and keys."""
        self.digests = other.digests[:num_blocks]
        self._tokens = other._tokens[:num_blocks]
        self._extras = other._extras[:num_blocks]
        self._known = other._known[:num_blocks]

    @property
    def num_tokens(self) -> int:
        """The number of tokens in its blocks."""
        return len(self.digests) * self._block_size

    def parent_digest(self, index: int) -> bytes:
        """Return the digest that block `index` is chained to: that of the block before it, or the
        root.
        """
        return self.digests[index - 1] if index else self._hash.root

    def tokens(self, index: int) -> bytes:
        """Return the token ids of block `index` as bytes."""
        return self._tokens[index]

    def extra(self, index: int) -> ExtraKeys:
        """Return the extra keys of block `index`."""
        return self._extras[index] if self._extras else NO_KEYS

    def content(self, index: int) -> Content:
        """Return the content that block `index` is to be cached with."""
        known = self._known
        while len(known) <= index:
            parent, at = (known[-1] if known else None), len(known)
            known.append(Content(self.digests[at], self._tokens[at], self.extra(at), parent))
        return known[index]

    def num_matching(self, contents: list[Content]) -> int:
        """Return the number of leading `contents` that equal those of the chain's first blocks."""
        num, above = 0, None
        for content, tokens, extra in zip(contents, self._tokens, self._each_extra(), strict=False):
            if content.parent is not above or content.tokens != tokens or content.extra != extra:
                break
            num, above = num + 1, content
        self._known[:num] = contents[:num]
        while num < len(contents) and self.matches(contents[num], num):
            num += 1
        return num

    def matches(self, content: Content, index: int) -> bool:
        """Return whether `content` is block `index` of the chain, with all blocks before it.

        Contents are compared down to one that is known already: mostly the parent.
        """
        known, below, trail = self._known, index, []
        each: Content | None = content
        while each is not None and not (0 <= below < len(known) and known[below] is each):
            if below < 0 or each.tokens != self._tokens[below] or each.extra != self.extra(below):
                return False
            trail.append(each)
            each, below = each.parent, below - 1
        if each is None and below >= 0:
            return False
        self._learn(trail, below + 1)
        return True

    def _each_extra(self) -> Iterable[ExtraKeys]:
        return self._extras or repeat(NO_KEYS)

    def _learn(self, trail: list[Content], start: int) -> None:
        """Take over the contents of the blocks from `start` on, the last one first. Equal contents
        are made one object, so that they are compared only once.
        """
        known = self._known
        for at, each in enumerate(reversed(trail), start):
            each.parent = known[at - 1] if at else None
            if at >= len(known) or each is trail[0]:
                known[at : at + 1] = [each]
