"""Blocks of the prefix cache, and states of recurrent layers, that come in from a slower store,
beside all requests: they are evictable at once, and found as any other.

A prefix of a model with recurrent layers ends where a state is: K and V beyond the last one, here
or in the store, are of no use.

    K and V     here here here stored stored stored       what is missing: the state after five
    states           here             stored              blocks, then two blocks of K and V
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from quire.cache.admission import BlockFinder, Tiers
from quire.cache.block_hash import STATE_GROUP, group_key
from quire.cache.block_pool import NULL_BLOCK, BlockPool
from quire.cache.chain import Chain, Content
from quire.cache.prefix import Lookup, find_prefix
from quire.cache.prefix_log import PrefixLog
from quire.cache.states.state_cache import StateCache

IsStored: TypeAlias = Callable[[bytes], bool]
"""Says whether a store has something under a key."""
STORED = -2
"""Stands for a block that only the store has."""


class BlockPosition(NamedTuple):
    """The place of one block in a chain, and the key under which it is found. With STATE_GROUP for
    a group it is the state after that block."""

    block_index: int
    group: int
    key: bytes


class StoredPrefix(NamedTuple):
    """The answer to how much more of a chain there is with what a store has: of `num_blocks` in
    all, `num_here` are found without it, and `missing` are the places that only it has: a state, if
    there is one, and then blocks, the first of the chain first.
    """

    num_here: int
    num_blocks: int
    missing: tuple[BlockPosition, ...]


class IncomingBlock(NamedTuple):
    """A block, or state, that was taken for incoming data, by its position in the question."""

    position: int
    block_id: int


class Transfers:
    """Finds the blocks and states that a store could add to a chain, and takes blocks and states
    of the cache for them."""

    def __init__(
        self, finder: BlockFinder, log: PrefixLog, states: StateCache | None = None
    ) -> None:
        self._finder = finder
        self._pool: BlockPool = finder.pool
        self._log = log
        self._states = states

    def watch(self, on_cached: Callable[[Content, int], None]) -> None:
        """Call `on_cached` with the content and group of each block that can be found from now on,
        and of each snapshot of states that lasts."""
        self._log.on_cached = on_cached
        if self._states is not None:
            self._states.on_lasting = lambda content: on_cached(content, STATE_GROUP)

    @property
    def block_size(self) -> int:
        return self._finder.block_size

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of what a block has: those of its layers, and that of states."""
        groups = tuple(range(len(self._finder.groups)))
        return groups if self._states is None else (*groups, STATE_GROUP)

    @property
    def num_loadable_states(self) -> int:
        """The states that may come in now: a request needs one for itself beside."""
        return 0 if self._states is None else self._states.num_loadable

    def is_here(self, place: BlockPosition) -> bool:
        """Return whether a block or state is found there without a store."""
        if place.group != STATE_GROUP:
            return self._pool.content_under(place.key) is not None
        digest = place.key[: -len(group_key(b"", STATE_GROUP))]
        return self._states is not None and self._states.content_under(digest) is not None

    def row_of(self, content: Content, group: int) -> int | None:
        """Return the block, or state, of that very content, None if it is gone."""
        if group == STATE_GROUP:
            return None if self._states is None else self._states.state_under(content)
        key = group_key(content.digest, group)
        return self._pool.find((key,))[0] if self._pool.content_under(key) is content else None

    def find(self, chain: Chain, max_blocks: int, is_stored: IsStored) -> StoredPrefix:
        """Return how many of the chain's first `max_blocks` could be found with a store's help."""
        finder = self._finder
        here: Lookup = self._pool if finder.host is None else Tiers(self._pool, finder.host)
        num_here, _ = self._longest(here, chain, max_blocks, None)
        if num_here == max_blocks:
            return StoredPrefix(num_here, num_here, ())
        lookup = _WithStore(here, chain, is_stored)
        num_blocks, found = self._longest(lookup, chain, max_blocks, is_stored)
        missing = [
            BlockPosition(index, group, group_key(chain.digests[index], group))
            for group, ids in enumerate(found)
            for index, block_id in enumerate(ids)
            if block_id == STORED
        ]
        missing.sort()
        if self._states is not None and self._num_with_state(chain, num_blocks) < num_blocks:
            key = group_key(chain.digests[num_blocks - 1], STATE_GROUP)
            missing.insert(0, BlockPosition(num_blocks - 1, STATE_GROUP, key))
        return StoredPrefix(num_here, num_blocks, tuple(missing))

    def _longest(
        self, lookup: Lookup, chain: Chain, max_blocks: int, is_stored: IsStored | None
    ) -> tuple[int, tuple[list[int], ...]]:
        """Return how many of the chain's first `max_blocks` are found and end where a state is, and
        these blocks by group. Without recurrent layers they end anywhere."""
        finder, length = self._finder, max_blocks
        while length := self._border(chain, length, is_stored):
            found = find_prefix(lookup, finder.groups, chain, length, block_size=finder.block_size)
            num_found = len(found[0]) if found else length
            if num_found == length or self._states is None:
                return num_found, found
            length = num_found
        return 0, ()

    def _border(self, chain: Chain, max_blocks: int, is_stored: IsStored | None) -> int:
        """Return the most blocks after which a state is found or stored, `max_blocks` at most."""
        if self._states is None:
            return max_blocks
        num_here = self._num_with_state(chain, max_blocks)
        if is_stored is None:
            return num_here
        for num_blocks in range(max_blocks, num_here, -1):
            if is_stored(group_key(chain.digests[num_blocks - 1], STATE_GROUP)):
                return num_blocks
        return num_here

    def _num_with_state(self, chain: Chain, max_blocks: int) -> int:
        """Return the most blocks after which a state is found here."""
        if self._states is None:
            return 0
        use_host = self._finder.host is not None
        found = self._states.find(chain, max_blocks, use_host=use_host)
        return 0 if found is None else found.num_blocks

    def take_in(
        self, chain: Chain, places: Sequence[BlockPosition], name: str = ""
    ) -> list[IncomingBlock]:
        """Take blocks and states for these places, as many as the pools have, and let them be found
        as cached. Places that are here by now get none. What the chain has here already is the last
        to be evicted for it. The caller writes them before any step is scheduled. `name` identifies
        the request in traces."""
        taken = self._take_blocks(chain, places)
        for position, place in enumerate(places):
            if place.group == STATE_GROUP and self._states is not None:
                state_id = self._states.load(chain, place.block_index + 1)
                taken += [] if state_id is None else [IncomingBlock(position, state_id)]
        return taken

    def _take_blocks(self, chain: Chain, places: Sequence[BlockPosition]) -> list[IncomingBlock]:
        pool, finder = self._pool, self._finder
        wanted = [
            position
            for position, place in enumerate(places)
            if place.group != STATE_GROUP and pool.content_under(place.key) is None
        ]
        if not wanted:
            return []
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

    def __init__(self, here: Lookup, chain: Chain, is_stored: IsStored) -> None:
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
