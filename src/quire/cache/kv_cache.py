"""The door of the cache: admit, grow, seal, release, check. It gets tables, token ids and counts,
never a request, and answers in the same call that acts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.cache.block_hash import extend_hashes
from quire.cache.block_pool import AccountsError, BlockPool, Usage
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig

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
        self._reuses = config.enable_prefix_caching
        self._pool = BlockPool(config.num_blocks)
        self._held: set[BlockTable] = set()

    @property
    def usage(self) -> Usage:
        return self._pool.usage

    @property
    def num_usable_blocks(self) -> int:
        return self._pool.num_usable

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def open_table(self, salt: bytes) -> BlockTable:
        """An empty table. Tables under different salts never share a block."""
        return BlockTable(block_ids=([],), salt=salt)

    def admit(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        *,
        keep_free: int = 0,
        reuse: bool = True,
    ) -> int | Short:
        """Blocks for all of `token_ids`, its sealed prefix shared; answers the number of tokens
        found there.

        At least one token is left to compute. With less than `keep_free` blocks to spare afterwards
        the answer is Short, and nothing has changed. `reuse` false takes fresh blocks only.
        """
        if table.block_ids[0]:
            raise AccountsError("a table that holds blocks is admitted again")
        found = self._find_prefix(table, token_ids) if reuse and self._reuses else []
        num_new = self.num_blocks_for(len(token_ids)) - len(found)
        num_idle = self._pool.num_idle(found)
        num_short = num_new + num_idle + keep_free - self._pool.num_available
        if num_short > 0:
            return Short(num_short)
        self._pool.share(found)
        table.block_ids[0].extend(found)
        table.block_ids[0].extend(self._pool.take(num_new) or ())
        table.num_sealed = len(found)
        self._held.add(table)
        return len(found) * self._block_size

    def grow(self, table: BlockTable, num_tokens: int) -> tuple[tuple[int, ...], ...] | None:
        """Room for `num_tokens` in all: the blocks added by group, none if there was room, None if
        there is none.
        """
        block_ids = table.block_ids[0]
        num_new = -(-num_tokens // self._block_size) - len(block_ids)
        if num_new <= 0:
            return NO_BLOCKS
        taken = self._pool.take(num_new)
        if taken is None:
            return None
        block_ids.extend(taken)
        return (tuple(taken),)

    def seal(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """The first `num_computed` tokens now lie in the table's blocks: full ones may be shared
        from here on.
        """
        num_full = num_computed // self._block_size
        if num_full <= table.num_sealed or not self._reuses:
            return
        if len(table.hashes) < num_full:
            extend_hashes(table.hashes, token_ids, block_size=self._block_size, salt=table.salt)
        block_ids = table.block_ids[0]
        for index in range(table.num_sealed, num_full):
            self._pool.seal(block_ids[index], table.hashes[index])
        table.num_sealed = num_full

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, the chain's tail first, so that the head of a prefix is evicted
        last.
        """
        if table not in self._held:
            raise AccountsError("a table that holds no blocks is released")
        self._held.remove(table)
        block_ids = table.block_ids[0]
        self._pool.release(reversed(block_ids))
        block_ids.clear()
        table.num_sealed = 0

    def check(self) -> None:
        """Raise AccountsError unless every block is free, idle, or held by the tables that list
        it.
        """
        holders: dict[int, int] = {}
        for table in self._held:
            for block_id in table.block_ids[0]:
                holders[block_id] = holders.get(block_id, 0) + 1
        self._pool.check(holders)

    def _find_prefix(self, table: BlockTable, token_ids: Sequence[int]) -> list[int]:
        extend_hashes(table.hashes, token_ids, block_size=self._block_size, salt=table.salt)
        num_reusable = (len(token_ids) - 1) // self._block_size
        return self._pool.find(table.hashes[:num_reusable])
