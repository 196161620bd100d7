"""Blocks of the prefix cache that come in from a slower store, beside all requests: they are
evictable at once, and found as any other.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from quire.cache.admission import BlockFinder, Tiers
from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK, BlockPool
from quire.cache.chain import Chain, Content
from quire.cache.prefix import Lookup, find_prefix
from quire.cache.prefix_log import PrefixLog

STORED = -2
"""Stands for a block that only the store has."""


class BlockPosition(NamedTuple):
    """The place of one block in a chain, and the key under which it is found."""

    block_index: int
    group: int
    key: bytes


class StoredPrefix(NamedTuple):
    """The answer to how much more of a chain there is with what a store has: of `num_blocks` in
    all, `num_here` are found without it, and `missing` are the places that only it has, the first
    of the chain first.
    """

    num_here: int
    num_blocks: int
    missing: tuple[BlockPosition, ...]


class IncomingBlock(NamedTuple):
    """A block that was taken for incoming data, by its position in the question."""

    position: int
    block_id: int


class Transfers:
    """Finds the blocks that a store could add to a chain, and takes cache blocks for them."""

    def __init__(self, finder: BlockFinder, log: PrefixLog) -> None:
        self._finder = finder
        self._pool: BlockPool = finder.pool
        self._log = log

    def watch(self, on_cached: Callable[[Content, int], None]) -> None:
        """Call `on_cached` with the content and group of each block that can be found from now
        on."""
        self._log.on_cached = on_cached

    @property
    def block_size(self) -> int:
        return self._finder.block_size

    @property
    def num_groups(self) -> int:
        return len(self._finder.groups)

    def is_here(self, key: bytes) -> bool:
        """Return whether a block is found under `key` without a store."""
        return self._pool.content_under(key) is not None

    def block_under(self, key: bytes, content: Content) -> int | None:
        """Return the block under `key` if it has that very content, None if it is gone."""
        if self._pool.content_under(key) is not content:
            return None
        return self._pool.find((key,))[0]

    def find(
        self, chain: Chain, max_blocks: int, is_stored: Callable[[bytes], bool]
    ) -> StoredPrefix:
        """Return how many of the chain's first `max_blocks` could be found with a store's help."""
        finder = self._finder
        here: Lookup = self._pool if finder.host is None else Tiers(self._pool, finder.host)
        size = finder.block_size
        num_here = len(find_prefix(here, finder.groups, chain, max_blocks, block_size=size)[0])
        if num_here == max_blocks:
            return StoredPrefix(num_here, num_here, ())
        lookup = _WithStore(here, chain, is_stored)
        found = find_prefix(lookup, finder.groups, chain, max_blocks, block_size=size)
        missing = [
            BlockPosition(index, group, group_key(chain.digests[index], group))
            for group, ids in enumerate(found)
            for index, block_id in enumerate(ids)
            if block_id == STORED
        ]
        return StoredPrefix(num_here, len(found[0]), tuple(sorted(missing)))

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], name: str = ""
    ) -> list[IncomingBlock]:
        """Take blocks for these places, as many as the pool has, and let them be found as cached.
        Places that are here by now get none. What the chain has here already is the last to be
        evicted for it. The caller writes the blocks before any step is scheduled. `name` identifies
        the request in traces."""
        pool, finder = self._pool, self._finder
        wanted = [
            position
            for position, place in enumerate(places)
            if pool.content_under(place.key) is None
        ]
        here = find_prefix(
            pool, finder.groups, chain, len(chain.digests), block_size=finder.block_size
        )
        held = [block_id for ids in here for block_id in ids if block_id != NULL_BLOCK]
        pool.share(held)
        taken = pool.take(min(len(wanted), pool.num_available)) or []
        pairs = [IncomingBlock(*pair) for pair in zip(wanted, taken, strict=False)]
        for position, block_id in pairs:
            index, group, key = places[position]
            pool.cache(block_id, key, chain.content(index))
            self._log.cached(chain, group, [index])
        pool.release(reversed(taken))
        pool.release(reversed(held))
        return pairs


class _WithStore:
    """Memory and a store as one pool. A block of the store counts as what the chain has there: that
    it is so is known when it is read."""

    def __init__(self, here: Lookup, chain: Chain, is_stored: Callable[[bytes], bool]) -> None:
        self._here = here
        self._chain = chain
        self._is_stored = is_stored
        self._indices = {digest: index for index, digest in enumerate(chain.digests)}
        self._num_digest_bytes = len(chain.digests[0]) if chain.digests else 0

    def find(self, keys: Sequence[bytes]) -> list[int]:
        found: list[int] = []
        while len(found) < len(keys):
            found += self._here.find(keys[len(found) :])
            if len(found) == len(keys) or not self._is_stored(keys[len(found)]):
                break
            found.append(STORED)
        return found

    def contents(self, keys: Sequence[bytes]) -> list[Content]:
        contents = [self.content_under(key) for key in keys]
        return [content for content in contents if content is not None]

    def content_under(self, key: bytes) -> Content | None:
        content = self._here.content_under(key)
        if content is not None or not self._is_stored(key):
            return content
        return self._chain.content(self._indices[key[: self._num_digest_bytes]])
