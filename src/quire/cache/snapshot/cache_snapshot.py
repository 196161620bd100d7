"""A snapshot has all of a cache that its decisions depend on, with numbers in place of digests and
nothing of any token. Restored, the cache decides as the one it was taken of.

This module alone reads and writes the parts of a cache from outside; `tests/cache/snapshot` holds
that it knows every field of each.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from quire.cache.block_copies import BlockCopy
from quire.cache.block_hash import TOKEN_BYTES
from quire.cache.block_pool import BlockPool
from quire.cache.block_table import BlockTable, Swap
from quire.cache.chain import Chain, Content
from quire.cache.charges.payers import NOBODY
from quire.cache.evictable_list import EvictionRank
from quire.cache.host_pool import HostPool
from quire.cache.kv_cache import KVCache
from quire.cache.retention.kept_prefixes import KeptPrefix
from quire.cache.sharing import NO_KEYS
from quire.cache.snapshot.digest_numbers import (
    NO_KEY,
    DigestNumbers,
    NumberedDigests,
    digest_of,
    numbers_of,
    runs_of,
)
from quire.cache.snapshot.state_snapshot import (
    StatesSnapshot,
    StateTableSnapshot,
    digests_of_states,
    digests_of_table,
    restore_states,
    restored_state_table,
    snapshot_state_table,
    snapshot_states,
)

MAX_NUMBERED = 2
"""The ratio of numbered digests to blocks, beyond those of live requests, at which digests are
numbered afresh."""


class PoolSnapshot(NamedTuple):
    """The blocks of the device: those that are free, from the last to be taken on, those that are
    evictable, from the first to be evicted on, those of higher ranks apart; by block the references
    and the number of its key, NO_KEY where it has none; and by the block that is found its
    duplicates.
    """

    free: list[int]
    evictable: list[int]
    ranked: list[list[int]]
    num_refs: list[int]
    keys: list[int]
    duplicates: list[tuple[int, list[int]]]


class HostSnapshot(NamedTuple):
    """The blocks of the host by the numbers of their keys, from the first to be evicted on, and how
    many swapped requests retain each key."""

    free: list[int]
    cached: list[tuple[int, int]]
    retained: list[tuple[int, int]]
    num_retainers: list[tuple[int, int]]
    private: list[int]


class SwapSnapshot(NamedTuple):
    """The blocks that a table was swapped out with, as in `Swap`, by the numbers of keys."""

    num_computed: int
    epoch: int
    retained: list[tuple[int, int, int]]
    private: list[tuple[int, int, int]]
    state_id: int | None


class TableSnapshot(NamedTuple):
    """A table, as in `BlockTable`; `chain` has the numbers of its digests in runs, and `is_held`
    says whether it holds blocks."""

    block_ids: tuple[list[int], ...]
    num_passed: list[int]
    chain: list[int]
    num_cached_blocks: int
    num_covered: int
    epoch: int
    swap: SwapSnapshot | None
    is_held: bool
    states: StateTableSnapshot | None


class KeptSnapshot(NamedTuple):
    """The fields of `KeptPrefix` and its name, by the numbers of keys and of the state's digest."""

    name: str
    keys: list[int]
    rank: EvictionRank
    state: int | None


class CacheSnapshot(NamedTuple):
    """All of a cache but its tables. `depths` has by the number of a digest how many blocks are
    before it; `pins` has the blocks under each name, and `pinned_states` the states."""

    pool: PoolSnapshot
    host: HostSnapshot | None
    epoch: int
    copies: list[BlockCopy]
    offloads: bool
    depths: list[int]
    pins: list[tuple[str, list[int]]]
    states: StatesSnapshot | None
    pinned_states: list[tuple[str, int]]
    kept: list[KeptSnapshot]


def forget_the_gone(
    cache: KVCache,
    tables: Sequence[BlockTable],
    numbers: DigestNumbers,
    others: Iterable[bytes] = (),
) -> None:
    """Number only those digests that the cache or one of the `tables`, which are all there are,
    still knows, and the `others`, once most of what is numbered must be gone: it takes as long as
    the rest of a snapshot."""
    num_host_blocks = 0 if cache._host is None else cache._host._num_blocks
    num_chained = sum(len(table.chain.digests) for table in tables)
    if len(numbers) <= MAX_NUMBERED * (cache.num_usable_blocks + num_host_blocks) + num_chained:
        return
    keys: list[Iterable[bytes]] = [filter(None, cache._pool._key_of)]
    if cache._host is not None:
        keys += (cache._host._cached, cache._host._num_retainers)
    digests: list[Iterable[bytes]] = [numbers.digests_of(chain.from_iterable(keys))]
    digests += [digests_of_table(table.states) for table in tables]
    digests += [] if cache._states is None else [digests_of_states(cache._states)]
    digests += [numbers.digests_of(each.keys) for each in cache.kept._kept.values()]
    digests += [filter(None, (each.state for each in cache.kept._kept.values())), others]
    numbers.restart(chain(*(table.chain.digests for table in tables), *digests))


def snapshot_cache(cache: KVCache, numbers: DigestNumbers) -> CacheSnapshot:
    """Return a snapshot of the cache, whose digests must have `numbers`."""
    host = cache._host
    return CacheSnapshot(
        _snapshot_pool(cache._pool, numbers),
        None if host is None else _snapshot_host(host, numbers),
        cache._epoch,
        list(cache._copies),
        cache.offloads,
        list(numbers.depths),
        list(cache.pins._blocks_of.items()),
        None if cache._states is None else snapshot_states(cache._states, numbers),
        list(cache.pins._state_of.items()),
        [
            KeptSnapshot(
                name,
                runs_of(list(map(numbers.key_number, each.keys))),
                each.rank,
                None if each.state is None else numbers.numbers([each.state])[0],
            )
            for name, each in cache.kept._kept.items()
        ],
    )


def snapshot_table(cache: KVCache, table: BlockTable, numbers: DigestNumbers) -> TableSnapshot:
    """Return a snapshot of one of the cache's tables."""
    swap = table.swap
    return TableSnapshot(
        tuple(list(ids) for ids in table.block_ids),
        list(table.num_passed),
        runs_of(numbers.numbers(table.chain.digests)),
        table.num_cached_blocks,
        table.num_covered,
        table.epoch,
        None if swap is None else _snapshot_swap(swap, numbers),
        table in cache._held,
        None if table.states is None else snapshot_state_table(table.states, numbers),
    )


def restore_cache(cache: KVCache, snapshot: CacheSnapshot, digests: NumberedDigests) -> None:
    """Restore a new cache, which uses the hash of `digests`, from the snapshot."""
    contents = _Contents(snapshot.depths, cache._block_size, digests)
    _restore_kept(cache, snapshot.kept, digests)
    _restore_pool(cache._pool, snapshot.pool, contents)
    if cache._host is not None and snapshot.host is not None:
        _restore_host(cache._host, snapshot.host, contents)
    cache._epoch = snapshot.epoch
    cache._copies[:] = snapshot.copies
    cache.offloads = snapshot.offloads
    for name, block_ids in snapshot.pins:
        cache.pins._blocks_of[name] = list(block_ids)
        cache.pins._num_pins.update(block_ids)
    if cache._states is not None and snapshot.states is not None:
        restore_states(cache._states, snapshot.states, contents.of)
    cache.pins._state_of.update(snapshot.pinned_states)


def restore_table(cache: KVCache, snapshot: TableSnapshot, digests: NumberedDigests) -> BlockTable:
    """Return the table that the snapshot says, of a cache that was restored."""
    table = cache.open_table()
    table.block_ids = tuple(list(ids) for ids in snapshot.block_ids)
    table.num_passed = list(snapshot.num_passed)
    _restore_chain(table.chain, numbers_of(snapshot.chain), cache._block_size)
    table.num_cached_blocks = snapshot.num_cached_blocks
    table.num_covered = snapshot.num_covered
    table.epoch = snapshot.epoch
    if snapshot.swap is not None:
        table.swap = _restored_swap(snapshot.swap, digests)
    if snapshot.states is not None:
        table.states = restored_state_table(snapshot.states)
    if snapshot.is_held:
        cache._held.add(table)
    return table


def restored_chain(cache: KVCache, runs: Sequence[int]) -> Chain:
    """Return the chain of these numbers, in runs."""
    chain = cache.open_table().chain
    _restore_chain(chain, numbers_of(runs), cache._block_size)
    return chain


def _snapshot_pool(pool: BlockPool, numbers: DigestNumbers) -> PoolSnapshot:
    return PoolSnapshot(
        list(pool._free),
        pool._evictable.ids_of(EvictionRank.PLAIN),
        [pool._evictable.ids_of(rank) for rank in EvictionRank if rank],
        list(pool._num_refs),
        numbers.key_numbers(pool._key_of),
        [(pool._block_of[key], list(alike)) for key, alike in pool._duplicates.items()],
    )


def _snapshot_host(host: HostPool, numbers: DigestNumbers) -> HostSnapshot:
    def numbered(blocks: dict[bytes, int]) -> list[tuple[int, int]]:
        return [(numbers.key_number(key), block_id) for key, block_id in blocks.items()]

    return HostSnapshot(
        list(host._free),
        numbered(host._cached),
        numbered(host._retained),
        numbered(host._num_retainers),
        sorted(host._private),
    )


def _snapshot_swap(swap: Swap, numbers: DigestNumbers) -> SwapSnapshot:
    retained = [(group, index, numbers.key_number(key)) for group, index, key in swap.retained]
    private = list(swap.private)
    return SwapSnapshot(swap.num_computed, swap.epoch, retained, private, swap.state_id)


class _Contents:
    """The contents of a restored cache. All blocks seem to hold the same tokens, since digests tell
    them apart; so all contents with as many blocks before them may share these.
    """

    def __init__(self, depths: Sequence[int], block_size: int, digests: NumberedDigests) -> None:
        self._depths = depths
        self._tokens = bytes(block_size * TOKEN_BYTES)
        self._digests = digests
        self._above: list[Content | None] = [None]

    def under(self, key_number: int) -> tuple[bytes, Content]:
        """Return the key of this number, and the content under it."""
        numbered = self._digests.key_of(key_number)
        return numbered.key, self.of(numbered.number)

    def of(self, number: int) -> Content:
        """Return the content of the digest of this number."""
        return Content(digest_of(number), self._tokens, NO_KEYS, self._parent(self._depths[number]))

    def _parent(self, depth: int) -> Content | None:
        above = self._above
        while len(above) <= depth:
            above.append(Content(b"", self._tokens, NO_KEYS, above[-1]))
        return above[depth]


def _restore_pool(pool: BlockPool, snapshot: PoolSnapshot, contents: _Contents) -> None:
    pool._free = list(snapshot.free)
    pool._evictable.append(snapshot.evictable)
    for rank, block_ids in enumerate(snapshot.ranked, 1):
        pool._evictable.append_to(EvictionRank(rank), block_ids)
    pool._num_refs = list(snapshot.num_refs)
    pool.payers.take([each for each, num in enumerate(snapshot.num_refs) if num], NOBODY)
    duplicates = {each for _, alike in snapshot.duplicates for each in alike}
    for block_id, key_number in _keyed(snapshot.keys):
        if block_id not in duplicates:
            key, content = contents.under(key_number)
            pool._key_of[block_id], pool._content_of[block_id] = key, content
            pool._block_of[key] = block_id
    for found, alike in snapshot.duplicates:
        found_key = pool._key_of[found]
        if found_key is not None:
            pool._duplicates[found_key] = dict.fromkeys(alike)
        for block_id in alike:
            pool._key_of[block_id] = found_key
            pool._content_of[block_id] = pool._content_of[found]


def _restore_kept(
    cache: KVCache, snapshot: Iterable[KeptSnapshot], digests: NumberedDigests
) -> None:
    for name, runs, rank, state in snapshot:
        keys = tuple(digests.key_of(number).key for number in numbers_of(runs))
        cache._pool.keep(keys, rank)
        digest = None if state is None else digest_of(state)
        cache.kept._kept[name] = KeptPrefix(keys, rank, digest)


def _keyed(keys: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the blocks that have keys, with the numbers of these."""
    return ((block_id, key) for block_id, key in enumerate(keys) if key != NO_KEY)


def _restore_host(host: HostPool, snapshot: HostSnapshot, contents: _Contents) -> None:
    host._free = list(snapshot.free)
    host._private = set(snapshot.private)
    for blocks, kept in ((snapshot.cached, host._cached), (snapshot.retained, host._retained)):
        for key_number, block_id in blocks:
            key, host._content_of[block_id] = contents.under(key_number)
            kept[key] = block_id
    for key_number, num_retainers in snapshot.num_retainers:
        key, _ = contents.under(key_number)
        host._num_retainers[key] = num_retainers
    host.payers.take([*host._num_retainers, *host._private], NOBODY)


def _restore_chain(chain: Chain, numbers: Sequence[int], block_size: int) -> None:
    chain.digests = list(map(digest_of, numbers))
    chain._tokens = [bytes(block_size * TOKEN_BYTES)] * len(numbers)


def _restored_swap(snapshot: SwapSnapshot, digests: NumberedDigests) -> Swap:
    retained = tuple(
        (group, index, digests.key_of(number).key) for group, index, number in snapshot.retained
    )
    private = tuple((group, index, host_id) for group, index, host_id in snapshot.private)
    return Swap(snapshot.num_computed, snapshot.epoch, retained, private, snapshot.state_id)
