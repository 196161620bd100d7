"""The door of the cache: admit, grow, advance, release, check. It gets tables, token ids and
counts, never a request, and answers in the same call that acts.

Each layer group has its own blocks of a request, all out of one pool. A group that needs only the
last tokens (a window, a chunk) gives the blocks behind them back and goes on with what that frees:

    full       [3][9][4][7][1]          blocks of a request of five blocks' length
    window     [0][0][0][8][6]          0: the null block, where the window has passed
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool, Usage
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain
from quire.cache.config import CacheConfig
from quire.cache.kv_events import KVEvent
from quire.cache.prefix import find_prefix
from quire.cache.prefix_log import PrefixLog
from quire.cache.prefix_miss import Miss
from quire.cache.reuse import OPEN, Reuse

NO_BLOCKS: tuple[tuple[int, ...], ...] = ()


class Short(NamedTuple):
    """No room: so many blocks are missing."""

    num_blocks: int


class KVCache:
    """All takes are all or nothing. A table is opened once per request and may be admitted again
    after a release.
    """

    def __init__(self, config: CacheConfig) -> None:
        self._block_size = config.block_size
        self._groups = config.groups
        self._forgetful = tuple(
            (index, group) for index, group in enumerate(config.groups) if group.reach is not None
        )
        self._max_chunk_tokens = config.max_chunk_tokens
        self._reuses = config.enable_prefix_caching and bool(config.groups)
        self._hash = config.block_hash
        self._log = PrefixLog(config)
        self._pool = BlockPool(config.num_blocks, self._log.evicted)
        self._epoch = 0
        self._held: set[BlockTable] = set()

    @property
    def usage(self) -> Usage:
        return self._pool.usage

    @property
    def num_usable_blocks(self) -> int:
        return self._pool.num_usable

    def max_blocks(self, num_tokens: int) -> int:
        """The most blocks that a request of `num_tokens` ever holds, over all groups."""
        return sum(
            group.max_blocks(
                num_tokens, block_size=self._block_size, max_chunk_tokens=self._max_chunk_tokens
            )
            for group in self._groups
        )

    def open_table(self, reuse: Reuse = OPEN) -> BlockTable:
        """An empty table, which shares blocks with those that `reuse` allows."""
        chain = Chain(self._hash, self._block_size, reuse)
        return BlockTable(tuple([] for _ in self._groups), [0] * len(self._groups), chain)

    def admit(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        *,
        keep_free: int = 0,
        reuse: bool = True,
    ) -> int | Short:
        """Blocks for `token_ids`, its sealed prefix shared; answers the number of tokens found
        there. A group that forgets gets blocks for the first chunk only.

        At least one token is left to compute. With less than `keep_free` blocks to spare afterwards
        the answer is Short, and nothing has changed. `reuse` false takes fresh blocks only.
        """
        if table in self._held:
            raise AccountsError("a table that holds blocks is admitted again")
        found = self._find(table, token_ids) if reuse and self._reuses else self._nothing()
        num_found = len(found[0]) if found else 0
        counts = self._num_new(num_found, len(token_ids))
        shared = [block_id for ids in found for block_id in ids if block_id != NULL_BLOCK]
        num_idle = self._pool.num_idle(shared)
        num_short = sum(counts) + num_idle + keep_free - self._pool.num_available
        if num_short > 0:
            return Short(num_short)
        self._pool.share(shared)
        taken = self._pool.take(sum(counts)) or []
        first = 0
        for group, (ids, count) in enumerate(zip(found, counts, strict=True)):
            table.block_ids[group].extend([*ids, *taken[first : first + count]])
            table.num_passed[group] = ids.count(NULL_BLOCK)
            first += count
        table.num_sealed = num_found
        table.epoch = self._epoch
        table.num_covered = min(map(len, table.block_ids), default=len(token_ids))
        self._held.add(table)
        return num_found * self._block_size

    def grow(self, table: BlockTable, start: int, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Room for a chunk of the tokens `start .. end`: the blocks added by group, none if there
        was room, None if there is none. What no token from `start` on can see is given back first.
        """
        self._give_back(table, start)
        wanted = -(-end // self._block_size)
        if wanted <= table.num_covered:
            return NO_BLOCKS
        counts = [max(wanted - len(ids), 0) for ids in table.block_ids]
        taken = self._pool.take(sum(counts))
        if taken is None:
            return None
        table.num_covered = wanted
        if len(counts) == 1:
            table.block_ids[0].extend(taken)
            return (tuple(taken),)
        grown, first = [], 0
        for ids, count in zip(table.block_ids, counts, strict=True):
            grown.append(tuple(taken[first : first + count]))
            ids.extend(grown[-1])
            first += count
        return tuple(grown)

    def advance(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """The first `num_computed` tokens now lie in the table's blocks: full ones may be shared
        from here on, and those that no later token can see are given back.
        """
        num_full = num_computed // self._block_size
        if num_full > table.num_sealed and self._reuses and table.epoch == self._epoch:
            self._seal(table, token_ids, num_full)
        self._give_back(table, num_computed)

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, the chain's tail first, so that the head of a prefix is evicted
        last.
        """
        if table not in self._held:
            raise AccountsError("a table that holds no blocks is released")
        self._held.remove(table)
        self._pool.release(_tail_first(table.block_ids))
        for group, ids in enumerate(table.block_ids):
            ids.clear()
            table.num_passed[group] = 0
        table.num_sealed = table.num_covered = 0

    def explain_miss(
        self, table: BlockTable, token_ids: Sequence[int], num_found: int
    ) -> Miss | None:
        """Why the admission of this table found only `num_found` tokens; None where it could find
        no more.
        """
        if not self._reuses:
            return None
        return self._log.explain_miss(table.chain, len(token_ids), num_found)

    def reset(self) -> None:
        """Nothing that is cached is found again. Tables that hold blocks go on, and what they
        compute is not found either, since it was computed from what is to be forgotten.
        """
        self._pool.forget()
        self._log.cleared()
        self._epoch += 1

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """What was sealed and evicted since the last call; nothing unless it is enabled."""
        return self._log.take_events()

    def check(self) -> None:
        """Raise AccountsError unless every block is free, idle, or held by the tables that list
        it.
        """
        holders: dict[int, int] = {}
        for table in self._held:
            for block_id in _tail_first(table.block_ids):
                holders[block_id] = holders.get(block_id, 0) + 1
        self._pool.check(holders)

    def _nothing(self) -> tuple[list[int], ...]:
        return tuple([] for _ in self._groups)

    def _find(self, table: BlockTable, token_ids: Sequence[int]) -> tuple[list[int], ...]:
        """By group, the blocks of the longest prefix that all of them still have."""
        table.chain.extend(token_ids)
        num_reusable = (len(token_ids) - 1) // self._block_size
        return find_prefix(
            self._pool, self._groups, table.chain, num_reusable, block_size=self._block_size
        )

    def _num_new(self, num_found: int, num_tokens: int) -> list[int]:
        """By group, the blocks to take for `num_tokens`, after `num_found` blocks of prefix."""
        whole = -(-num_tokens // self._block_size)
        first_end = num_found * self._block_size + self._max_chunk_tokens
        chunk = min(whole, -(-first_end // self._block_size))
        return [(whole if group.reach is None else chunk) - num_found for group in self._groups]

    def _seal(self, table: BlockTable, token_ids: Sequence[int], num_full: int) -> None:
        chain = table.chain
        chain.extend(token_ids)
        for group, block_ids in enumerate(table.block_ids):
            first = max(table.num_sealed, table.num_passed[group])
            sealed = [
                index
                for index in range(first, num_full)
                if self._pool.seal(
                    block_ids[index], group_key(chain.digests[index], group), chain.content(index)
                )
            ]
            self._log.sealed(chain, group, sealed)
        table.num_sealed = num_full

    def _give_back(self, table: BlockTable, position: int) -> None:
        """Release what no token at `position` or later can see."""
        for group, retention in self._forgetful:
            first, end = table.num_passed[group], retention.first_needed(position)
            end //= self._block_size
            if end > first:
                block_ids = table.block_ids[group]
                self._pool.release(block_ids[first:end])
                block_ids[first:end] = [NULL_BLOCK] * (end - first)
                table.num_passed[group] = end


def _tail_first(block_ids: tuple[list[int], ...]) -> list[int]:
    """All blocks of a table, those of the last tokens first, whatever their group."""
    if len(block_ids) == 1:
        ordered = block_ids[0][::-1]
    else:
        longest = max(map(len, block_ids), default=0)
        ordered = [
            ids[index]
            for index in range(longest - 1, -1, -1)
            for ids in block_ids
            if index < len(ids)
        ]
    return [block_id for block_id in ordered if block_id != NULL_BLOCK]
