"""Pinned prefixes: full blocks that are never evicted, whether or not a request holds them.

A pin holds its blocks as a request does, by a reference to each. A group with a window or chunks
needs only the blocks that the first token behind the prefix can see:

    full       [3][9][4][7]     pinned: 3 9 4 7
    window     [0][0][8][6]     pinned: 8 6
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from quire.cache.admission import BlockFinder, BlocksMissing
from quire.cache.block_hash import group_key
from quire.cache.block_pool import BlockState, BlockUsage
from quire.cache.block_table import BlockTable, tail_first
from quire.cache.charges.payers import NOBODY
from quire.cache.states.state_cache import StateCache


class Pins:
    """Holds the blocks of pinned prefixes, which `finder` finds, until they are unpinned.

    Prefixes may share blocks: each block counts once. How many may be pinned is for the caller to
    say; none can be, unless the cache `is_caching` prefixes. With a block goes the snapshot of
    `states` at the end of a prefix.
    """

    def __init__(
        self, finder: BlockFinder, states: StateCache | None = None, *, is_caching: bool
    ) -> None:
        self._finder = finder
        self._states = states
        self._state_of: dict[str, int] = {}
        self._is_caching = is_caching
        self._blocks_of: dict[str, list[int]] = {}
        self._payer_of: dict[str, str] = {}
        self._num_pins: Counter[int] = Counter()

    @property
    def num_blocks(self) -> int:
        """The number of blocks that are pinned."""
        return len(self._num_pins)

    @property
    def usage(self) -> BlockUsage:
        """The pool's blocks by state. A pinned block counts only as pinned."""
        free, cached, held, _ = self._finder.pool.usage
        num_pinned = len(self._num_pins)
        return BlockUsage(free, cached, held - num_pinned, num_pinned)

    def states(self) -> bytearray:
        """Return the `BlockState` of each block of the pool. A pinned one counts only as pinned."""
        states = self._finder.pool.states()
        for block_id in self._num_pins:
            states[block_id] = BlockState.PINNED
        return states

    def holders(self) -> Iterator[int]:
        """Yield each pinned block once for each pin that holds it."""
        return self._num_pins.elements()

    def held_states(self) -> list[int]:
        """Return each pinned state once for each pin that holds it."""
        return list(self._state_of.values())

    def num_new(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """Return how many blocks more would be pinned with the full blocks of `token_ids`; the
        table says with whom they are shared.
        """
        table.chain.extend(token_ids)
        finder, num_new = self._finder, 0
        num_full = len(token_ids) // finder.block_size
        for group, pattern in enumerate(finder.groups):
            first = pattern.first_needed(num_full * finder.block_size) // finder.block_size
            keys = [group_key(each, group) for each in table.chain.digests[first:num_full]]
            pinned = (found for key in keys for found in finder.pool.find([key]))
            num_new += len(keys) - sum(1 for block_id in pinned if block_id in self._num_pins)
        return num_new

    def pin(
        self, name: str, table: BlockTable, token_ids: Sequence[int], *, max_blocks: int
    ) -> int | BlocksMissing | None:
        """Pin the full blocks of `token_ids` under a name, in place of what it pinned before, and
        return how many they are. The payer of the table is the pin's.

        Nothing is changed, and the answer is BlocksMissing, if more than `max_blocks` would be
        pinned in all; or None, if not all of these blocks are on the device and can be found.
        """
        finder = self._finder
        table.chain.extend(token_ids)
        num_full = len(token_ids) // finder.block_size
        found = finder.prefix(table.chain, num_full, use_host=False)
        if not self._is_caching or found.num_cached_blocks < num_full:
            return None
        state = None if self._states is None else self._states.find(table.chain, num_full)
        if self._states is not None and (state is None or state.num_blocks < num_full):
            return None
        block_ids = tail_first(found.block_ids)
        num_pinned = len(self._num_pins.keys() | set(block_ids))
        if num_pinned > max_blocks:
            return BlocksMissing(num_pinned - max_blocks)
        finder.pool.share(block_ids, table.payer)
        if self._states is not None and state is not None:
            self._states.hold(state.state_id)
        self.unpin(name)
        if state is not None:
            self._state_of[name] = state.state_id
        self._blocks_of[name] = block_ids
        self._payer_of[name] = table.payer
        self._num_pins.update(block_ids)
        return len(block_ids)

    def unpin(self, name: str) -> None:
        """Let the blocks under this name be evicted, the prefix's tail first; a name that has none
        changes nothing.
        """
        state_id = self._state_of.pop(name, None)
        if self._states is not None and state_id is not None:
            self._states.unhold(state_id)
        block_ids = self._blocks_of.pop(name, [])
        self._finder.pool.release(block_ids, self._payer_of.pop(name, NOBODY))
        self._num_pins.subtract(block_ids)
        for block_id in block_ids:
            if not self._num_pins[block_id]:
                del self._num_pins[block_id]

    def clear(self) -> None:
        """Unpin all."""
        for name in tuple(self._blocks_of):
            self.unpin(name)
