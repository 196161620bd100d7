"""The interface of the cache: admit, grow, advance, release, check. It gets tables, token ids and
counts, never a request, and answers in the same call that acts.

Each layer group has its own blocks of a request, all out of one pool. A group that needs only the
last tokens (a window, a chunk) gives the blocks behind them back and goes on with what that frees:

    full       [3][9][4][7][1]          blocks of a request of five blocks' length
    window     [0][0][0][8][6]          0: the null block, where the window has passed
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from quire.cache.admission import BlockFinder, BlocksMissing, ComputedBlocks, HostHit, Tiers
from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool, BlockUsage
from quire.cache.block_table import BlockTable, tail_first
from quire.cache.chain import Chain, Content
from quire.cache.charges.payers import NOBODY, ChargeChanges
from quire.cache.config import CacheConfig
from quire.cache.full_blocks import cache_full_blocks
from quire.cache.host_pool import HostPool, HostUsage
from quire.cache.kv_events import KVEvent
from quire.cache.pins import Pins
from quire.cache.prefix_log import PrefixLog
from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.cache.retention.kept_prefixes import KeptPrefixes
from quire.cache.sharing import OPEN, SharingTerms
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_pool import StateUsage
from quire.cache.states.state_use import StateUse
from quire.cache.swapping import RecomputeCost, has_visible, recompute_cost_of, swap_out
from quire.cache.transfers import Transfers

NO_BLOCKS: tuple[tuple[int, ...], ...] = ()


class KVCache:
    """Allocates the blocks of all requests; a call gets all its blocks or none.

    A table is opened once per request and may be admitted again after a release. `offloads` may be
    set at any time: it says whether evicted blocks that no swapped request needs are copied to the
    host as well. `pins` hold prefixes that are never evicted, `kept` those that are evicted last.
    """

    def __init__(self, config: CacheConfig) -> None:
        self._block_size = config.block_size
        self._groups = config.groups
        self._windowed = tuple(
            (index, group) for index, group in enumerate(config.groups) if group.size is not None
        )
        self._max_chunk_tokens = config.max_chunk_tokens
        has_any = bool(config.groups) or config.num_states > 0
        self._is_caching = config.enable_prefix_caching and has_any
        self._hash = config.block_hash
        self._log = PrefixLog(config)
        self._host = (
            HostPool(config.num_host_blocks, self._gone_from_host)
            if config.num_host_blocks or config.num_host_states
            else None
        )
        self._pool = BlockPool(config.num_blocks, self._evicted)
        self._epoch = 0
        self._finder = BlockFinder(self._pool, self._host, config.groups, config.block_size)
        self._copies: list[BlockCopy] = []
        self._states = (
            StateCache(config, self._is_reachable, self._copies) if config.num_states else None
        )
        self.pins = Pins(self._finder, self._states, is_caching=self._is_caching)
        self.kept = KeptPrefixes(self._finder, self._states)
        self.offloads = True
        self._held: set[BlockTable] = set()

    @property
    def transfers(self) -> Transfers:
        """The way for blocks from and to a slower store."""
        return Transfers(self._finder, self._log, self._states)

    @property
    def usage(self) -> BlockUsage:
        """The device's blocks by state."""
        return self.pins.usage

    @property
    def host_usage(self) -> HostUsage:
        """The host's blocks by state."""
        return HostUsage(0, 0, 0) if self._host is None else self._host.usage

    @property
    def states(self) -> StateCache | None:
        """The states of recurrent layers, None for a model without any."""
        return self._states

    @property
    def state_usage(self) -> StateUsage:
        """The states of recurrent layers by what they are."""
        return StateUsage() if self._states is None else self._states.usage

    @property
    def charges(self) -> ChargeChanges:
        """The changes of device charges and of reserved host blocks; their reader clears them."""
        on_host = self._host.payers.changes if self._host is not None else {}
        return ChargeChanges(self._pool.payers.changes, on_host)

    @property
    def block_states(self) -> bytearray:
        """The `BlockState` of each block, a byte each: device blocks, then host blocks."""
        return self.pins.states() + (b"" if self._host is None else self._host.states())

    @property
    def num_usable_blocks(self) -> int:
        return self._pool.num_usable

    def max_blocks(self, num_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` ever holds, over all groups."""
        size, chunk = self._block_size, self._max_chunk_tokens
        return sum(
            group.max_blocks(num_tokens, block_size=size, max_chunk_tokens=chunk)
            for group in self._groups
        )

    def open_table(
        self, sharing: SharingTerms = OPEN, payer: str = NOBODY, name: str = ""
    ) -> BlockTable:
        """Return an empty table, which may share blocks as `sharing` allows."""
        chain, num_groups = Chain(self._hash, self._block_size, sharing), len(self._groups)
        block_ids: tuple[list[int], ...] = tuple([] for _ in range(num_groups))
        return BlockTable(block_ids, [0] * num_groups, chain, payer=payer, name=name)

    def admit(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        *,
        keep_free: int = 0,
        use_cache: bool = True,
        use_host: bool = True,
    ) -> int | BlocksMissing:
        """Take blocks for `token_ids`, sharing those of the cached prefix, and return the number of
        tokens found in it. A group with a window or chunks gets blocks for the first chunk only.

        At least one token is left to compute. If less than `keep_free` blocks would be left, or
        every state is held, the answer is BlocksMissing, and nothing has changed. With
        `use_cache` false the blocks are fresh, or those that the table itself was swapped out with.
        With `use_host` false nothing is found on the host, but for a table that was swapped out.
        Raises AccountsError for a table that holds blocks.
        """
        if table in self._held:
            raise AccountsError("a table that holds blocks is admitted again")
        found = self._find(table, token_ids, use_cache=use_cache, use_host=use_host)
        counts = self._num_new(found, len(token_ids))
        shared = found.shared
        num_taken = sum(counts) + len(found.host_hits)
        num_evictable = self._pool.num_evictable(shared)
        num_missing = num_taken + num_evictable + keep_free - self._pool.num_available
        if num_missing > 0:
            return BlocksMissing(num_missing)
        if self._states is not None and not self._states.open(
            table, found.state, found.num_kv_tokens, len(token_ids)
        ):
            return BlocksMissing(0, num_states=1)
        self._pool.share(shared, table.payer)
        taken = self._pool.take(num_taken, table.payer) or []
        if not self._are_still_on_host(found.host_hits):
            self._pool.release([*taken, *reversed(shared)], table.payer)
            if self._states is not None:
                self._states.release(table)
            return self.admit(
                table, token_ids, keep_free=keep_free, use_cache=use_cache, use_host=False
            )
        self._open(table, found, counts, taken)
        table.num_covered = min(map(len, table.block_ids), default=len(token_ids))
        return found.num_tokens

    def _are_still_on_host(self, host_hits: Sequence[HostHit]) -> bool:
        """Return whether the host hits are still there after their target blocks were taken:
        offloading the content of those may have evicted a hit. Blocks retained by a swapped request
        are never evicted."""
        host = self._host
        return host is None or all(
            key is None or host.find(key) == host_id for _, _, host_id, key in host_hits
        )

    def _open(
        self, table: BlockTable, found: ComputedBlocks, counts: Sequence[int], taken: list[int]
    ) -> None:
        """Fill the table with device hits, host hits that are copied in, and new blocks."""
        for group, ids in enumerate(found.block_ids):
            table.block_ids[group].extend(ids)
            table.num_passed[group] = ids.count(NULL_BLOCK)
        table.epoch = self._epoch
        table.num_from_host = self._block_size * found.num_host_hits
        for group, index, host_id, key in found.host_hits:
            block_id = taken.pop()
            table.block_ids[group][index] = block_id
            self._copies.append(BlockCopy(CopyKind.IN, host_id, block_id))
            if key is not None:
                self._pool.cache(block_id, key, table.chain.content(index))
                self._log.cached(table.chain, group, [index])
            elif table.swap is not None:
                table.epoch = table.swap.epoch  # what it goes on with was computed then
        for group, count in enumerate(counts):
            table.block_ids[group].extend(taken[:count])
            del taken[:count]
        self.forget(table)
        table.num_cached_blocks = found.num_cached_blocks
        self._held.add(table)

    def grow(self, table: BlockTable, start: int, end: int) -> tuple[tuple[int, ...], ...] | None:
        """Make the table hold the tokens `start .. end`, and return the blocks added by group: none
        if it held them already, None if the pool has too few. Blocks that no token from `start` on
        attends to are freed first."""
        self._give_back(table, start)
        wanted = -(-end // self._block_size)
        if wanted <= table.num_covered:
            return NO_BLOCKS
        counts = [max(wanted - len(ids), 0) for ids in table.block_ids]
        taken = self._pool.take(sum(counts), table.payer)
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

    def plan_states(self, table: BlockTable, start: int, end: int) -> StateUse | None:
        """Return the states that the request's tokens `start .. end` read and write, None for a
        model without recurrent layers."""
        return None if self._states is None else self._states.plan(table, start, end)

    def will_find(self, table: BlockTable, num_tokens: int) -> bool:
        """Return whether others will find the first `num_tokens` of a table, which end at a border
        of blocks, once a step under way is done: a model with recurrent layers needs a snapshot
        there."""
        return self._states is None or self._states.will_keep(table, num_tokens)

    def advance(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Note that the first `num_computed` tokens now lie in the table's blocks: full ones may be
        shared from here on, and blocks that no later token attends to are freed."""
        num_full = num_computed // self._block_size
        if num_full > table.num_cached_blocks and self._is_caching and table.epoch == self._epoch:
            table.chain.extend(token_ids)
            if self._states is not None and not self._groups:
                self._states.remember(table.chain, table.num_cached_blocks, num_full)
            cache_full_blocks(table, num_full, self._pool, self._log)
        if self._states is not None:
            is_findable = self._is_caching and table.epoch == self._epoch
            self._states.advance(table, num_computed, is_findable=is_findable)
        self._give_back(table, num_computed)

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, the chain's tail first, so that the head of a prefix is evicted
        last. Raises AccountsError for a table that holds none.
        """
        if table not in self._held:
            raise AccountsError("a table that holds no blocks is released")
        self._held.remove(table)
        self._pool.release(tail_first(table.block_ids), table.payer)
        if self._states is not None:
            if not self._groups and table.epoch == self._epoch:
                self._states.remember(table.chain, 0, table.num_cached_blocks)
            self._states.release(table)
        for group, ids in enumerate(table.block_ids):
            ids.clear()
            table.num_passed[group] = 0
        table.num_cached_blocks = table.num_covered = 0

    def prefix_recompute_cost(self, num_blocks: int) -> RecomputeCost:
        """Return the cost of losing the first blocks of a prompt in every group, and the snapshot
        of recurrent layers after them."""
        num_tokens, num_states = num_blocks * self._block_size, int(self._states is not None)
        return RecomputeCost(num_blocks * len(self._groups), num_tokens, num_states)

    def recompute_cost(self, table: BlockTable, num_computed: int) -> RecomputeCost:
        """Return the cost of recomputing the first `num_computed` tokens after a release."""
        cost = recompute_cost_of(table, self._pool, num_computed, self._block_size)
        if self._states is None:
            return cost
        return self._states.recompute_cost(table, num_computed, cost)

    def swap_point(self, table: BlockTable, num_computed: int) -> int:
        """Return after how many tokens, `num_computed` at most, a swapped table can go on; 0 for
        none. With recurrent layers there must be a state after just these."""
        if self._states is None:
            return num_computed
        return self._states.swap_point(table, num_computed)

    def swap_out(self, table: BlockTable, num_computed: int) -> bool:
        """Release the table, its first `num_computed` tokens kept by the host until it is admitted
        again or forgotten. Return False, and do nothing, if the host has too few blocks or states,
        or if the table has given back what the next token sees, or has no state after just these
        tokens: it may have grown for a later one, whose step is now thrown away.
        """
        if self._host is None or table not in self._held:
            return False
        if self.swap_point(table, num_computed) != num_computed:
            return False
        if not has_visible(table, self._groups, num_computed, self._block_size):
            return False
        copies = swap_out(table, self._pool, self._host, num_computed, self._block_size)
        if copies is None:
            return False
        if self._states is not None and not self._states.swap_out(table, num_computed):
            self.forget(table)
            return False
        self._copies += copies
        self.release(table)
        return True

    def forget(self, table: BlockTable) -> None:
        """Drop the host blocks of a swapped-out table, and its state."""
        swap, table.swap = table.swap, None
        if swap is not None and self._host is not None:
            keys = swap.keys if swap.epoch == self._epoch else ()
            self._host.release(keys, (host_id for *_, host_id in swap.private), table.payer)
            if self._states is not None and swap.state_id is not None:
                self._states.drop_swapped(swap.state_id)

    def fork(
        self, source: BlockTable, table: BlockTable, num_tokens: int, *, keep_free: int = 0
    ) -> bool | BlocksMissing:
        """Open `table` over the first `num_tokens` of `source`, which holds more: full blocks are
        shared, the last is copied, and one more token fits. Return False if `source` has given back
        what is needed, BlocksMissing if less than `keep_free` blocks would be left.
        """
        if source not in self._held or table in self._held or self._states is not None:
            return False
        if not has_visible(source, self._groups, num_tokens, self._block_size):
            return False
        num_full, num_over = divmod(num_tokens, self._block_size)
        num_missing = len(self._groups) + keep_free - self._pool.num_available
        if num_missing > 0:
            return BlocksMissing(num_missing)
        taken = self._pool.take(len(self._groups), table.payer) or []
        for index, (ids, block_id) in enumerate(zip(source.block_ids, taken, strict=True)):
            full = (block_id for block_id in ids[:num_full] if block_id != NULL_BLOCK)
            self._pool.share(full, table.payer)
            table.block_ids[index].extend([*ids[:num_full], block_id])
            table.num_passed[index] = min(source.num_passed[index], num_full)
            if num_over:
                self._copies.append(BlockCopy(CopyKind.FORK, ids[num_full], block_id))
        self.forget(table)
        table.chain.adopt(source.chain, num_full)
        table.epoch = source.epoch
        table.num_cached_blocks = min(source.num_cached_blocks, num_full)
        table.num_covered = num_full + 1
        self._held.add(table)
        return True

    def num_cached(
        self, table: BlockTable, token_ids: Sequence[int], *, use_host: bool = True
    ) -> int:
        """Return the number of tokens that an admission of this table would find now."""
        return self._find(table, token_ids, use_cache=True, use_host=use_host).num_tokens

    def block_keys(self, table: BlockTable, token_ids: Sequence[int]) -> Sequence[bytes]:
        """Return the keys under which the full blocks of `token_ids` are found once this table has
        them computed; none where they never will be.
        """
        if not self._is_caching or (table in self._held and table.epoch != self._epoch):
            return ()
        table.chain.extend(token_ids)
        return table.chain.digests

    def explain_miss(
        self, table: BlockTable, token_ids: Sequence[int], num_found: int
    ) -> PrefixMiss | None:
        """Return why this table's admission found only `num_found` tokens, None if that is all."""
        if not self._is_caching:
            return None
        if self._states is not None and (len(token_ids) - 1) // self._block_size > 0:
            num_kv_tokens = self._num_kv_found(table, token_ids)
            if num_kv_tokens > num_found:
                return PrefixMiss(MissKind.STATE, num_kv_tokens)
        return self._log.explain_miss(table.chain, len(token_ids), num_found)

    def reset(self) -> None:
        """Make all cached blocks unfindable, including retained blocks of swapped requests; pins
        are dropped. Tables keep their blocks, and blocks computed from them are not cached either,
        because they depend on the forgotten ones."""
        self.pins.clear()
        self.kept.clear()
        self._pool.forget()
        if self._states is not None:
            self._states.reset()
        if self._host is not None:
            self._host.clear()
        self._log.cleared()
        self._epoch += 1

    def take_kv_events(self) -> tuple[KVEvent, ...]:
        """Return the events since the last call; none unless they are enabled."""
        return self._log.take_events()

    def take_block_copies(self) -> tuple[BlockCopy, ...]:
        """Return the copies that must be done before the next step runs, for all that was answered
        until now.
        """
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def check(self) -> None:
        """Raise AccountsError unless every block is free, evictable, or held by the tables and pins
        that list it, and what swapped requests retain is there.
        """
        holders = Counter(self.pins.holders())
        for table in self._held:
            holders.update(tail_first(table.block_ids))
        self._pool.check(holders)
        if self._states is not None:
            self._states.check(self._held, self.pins.held_states())
        if self._host is not None:
            self._host.check()
            Tiers(self._pool, self._host).check_retained()

    def _find(
        self, table: BlockTable, token_ids: Sequence[int], *, use_cache: bool, use_host: bool
    ) -> ComputedBlocks:
        """Find the blocks that hold the beginning of `token_ids`, up to all but its last token. A
        swapped table resumes with its own blocks, unless more is found or a reset voided them.
        """
        found, swap = self._finder.nothing(), table.swap
        if self._is_caching and use_cache:
            table.chain.extend(token_ids)
            num_reusable = (len(token_ids) - 1) // self._block_size
            look = self._finder.prefix
            if self._states is not None:
                look = partial(self._finder.prefix_with_state, self._states)
            found = look(table.chain, num_reusable, use_host=use_host)
        if swap is None or found.num_tokens >= swap.num_computed:
            return found
        if swap.retained and swap.epoch != self._epoch:
            return found
        return self._finder.swapped(table.chain, swap) or found

    def _num_kv_found(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """Return the tokens whose K and V were found at the admission of this table, or would be
        found now."""
        if table.states is not None:
            return table.states.num_kv_found
        return self._find(table, token_ids, use_cache=True, use_host=True).num_kv_tokens

    def _is_reachable(self, content: Content) -> bool:
        """Return whether the K and V of a block are found in all groups."""
        keys = [group_key(content.digest, group) for group in range(len(self._groups))]
        if self._host is None:
            return all(self._pool.content_under(key) is not None for key in keys)
        tiers = Tiers(self._pool, self._host)
        return all(tiers.content_under(key) is not None for key in keys)

    def _num_new(self, found: ComputedBlocks, num_tokens: int) -> list[int]:
        """Return by group the number of new blocks for `num_tokens` beside the hits."""
        whole = -(-num_tokens // self._block_size)
        first_end = found.num_tokens + self._max_chunk_tokens
        chunk = min(whole, -(-first_end // self._block_size))
        return [
            (whole if group.size is None else chunk) - len(ids)
            for group, ids in zip(self._groups, found.block_ids, strict=True)
        ]

    def _evicted(self, block_id: int, key: bytes, content: Content) -> None:
        """Copy a device block that is used again to the host, if it is wanted there."""
        self._log.evicted(key, content)
        host_id = None
        if self._host is not None and (self.offloads or self._host.is_retained(key)):
            host_id = self._host.put(key, content)
        if host_id is not None:
            self._copies.append(BlockCopy(CopyKind.OUT, block_id, host_id))
            self._log.kept_by_host(key, content)
        elif self._states is not None:
            self._states.note_lost(content.digest)

    def _gone_from_host(self, key: bytes, content: Content) -> None:
        self._log.gone_from_host(key, content)
        if self._states is not None:
            self._states.note_lost(content.digest)

    def _give_back(self, table: BlockTable, position: int) -> None:
        """Release the blocks that no token at `position` or later attends to."""
        for group, pattern in self._windowed:
            first, end = table.num_passed[group], pattern.first_needed(position)
            end //= self._block_size
            if end > first:
                block_ids = table.block_ids[group]
                self._pool.release(block_ids[first:end], table.payer)
                block_ids[first:end] = [NULL_BLOCK] * (end - first)
                table.num_passed[group] = end
