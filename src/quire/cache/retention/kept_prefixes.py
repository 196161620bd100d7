"""Prefixes whose blocks are evicted behind those that nobody keeps. Unlike pins they hold nothing:
where nothing else is left, their blocks are evicted too, and no admission fails for them.

    evicted first                                        evicted last
    [given up][plain, oldest first][asked to be kept][expected to be found]
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.cache.admission import BlockFinder
from quire.cache.block_hash import group_key
from quire.cache.evictable_list import EvictionRank
from quire.cache.states.state_cache import StateCache


class KeptPrefix(NamedTuple):
    """The keys of a kept prefix, those of its last block first, and the digest of the snapshot of
    states that goes with it."""

    keys: tuple[bytes, ...]
    rank: EvictionRank
    state: bytes | None = None


class KeptPrefixes:
    """Keeps prefixes by name, until they are let go. A name keeps one prefix at a time."""

    def __init__(self, finder: BlockFinder, states: StateCache | None) -> None:
        self._finder = finder
        self._states = states
        self._kept: dict[str, KeptPrefix] = {}

    @property
    def num_expected(self) -> int:
        """The number of evictable blocks that a request is about to find."""
        return self._finder.pool.num_kept(EvictionRank.EXPECTED)

    @property
    def num_evictable(self) -> int:
        """The number of evictable blocks that are kept at all."""
        pool = self._finder.pool
        return pool.num_kept(EvictionRank.ASKED) + pool.num_kept(EvictionRank.EXPECTED)

    def keep(self, name: str, digests: Sequence[bytes], rank: EvictionRank) -> int:
        """Keep the blocks of a chain of digests under a name, in place of what it kept before, and
        return how many blocks they are. Windows need the blocks at its end alone."""
        keys = tuple(self._keys(digests, 0))
        state = None
        if self._states is not None:
            states = self._states
            state = next((each for each in reversed(digests) if states.content_under(each)), None)
        self._finder.pool.keep(keys, rank)
        self.let_go(name)
        if self._states is not None and state is not None:
            self._states.expect(state, 1)
        self._kept[name] = KeptPrefix(keys, rank, state)
        return len(keys)

    def let_go(self, name: str) -> None:
        """Keep what is under a name no longer; a name that keeps nothing changes nothing."""
        kept = self._kept.pop(name, None)
        if kept is None:
            return
        self._finder.pool.let_go(kept.keys, kept.rank)
        if self._states is not None and kept.state is not None:
            self._states.expect(kept.state, -1)

    def give_up(self, digests: Sequence[bytes], first: int) -> None:
        """Let the blocks from `first` on of a chain of digests be evicted before all others, its
        tail first; those that somebody keeps are not touched."""
        self._finder.pool.give_up(tuple(self._keys(digests, first)))

    def clear(self) -> None:
        """Keep nothing any more, as the pool has forgotten all."""
        self._kept.clear()

    def _keys(self, digests: Sequence[bytes], first: int) -> Iterator[bytes]:
        """Yield the keys of the blocks from `first` on in all groups, tail first."""
        size, num_tokens = self._finder.block_size, len(digests) * self._finder.block_size
        starts = [
            max(first, 0 if group.size is None else group.first_needed(num_tokens) // size)
            for group in self._finder.groups
        ]
        for index in range(len(digests) - 1, first - 1, -1):
            for group, start in enumerate(starts):
                if index >= start:
                    yield group_key(digests[index], group)
