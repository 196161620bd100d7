"""What a watch tells of blocks is what the cache holds, after any calls, told in any number of
pieces."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from quire.cache.block_pool import NULL_BLOCK, BlockState
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.live.block_watch import (
    FIRST_SET,
    BlockChanges,
    BlockWatch,
    Holder,
    HolderSet,
    apply_runs,
)
from quire.cache.sharing import OPEN
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from tests.cache import cache_machine, swap_machine
from tests.cache.cache_machine import CacheMachine, held_by
from tests.cache.swap_machine import SwapMachine
from tests.profiles import cases


class Picture:
    """What one watch has told of the blocks of a cache."""

    def __init__(self, cache: KVCache) -> None:
        self._watch = BlockWatch(cache)
        self._codes = [-1] * len(cache.block_states)
        self._sets: dict[int, HolderSet] = {}

    def take(self, holders: list[Holder]) -> BlockChanges:
        changes = self._watch.changes(holders)
        apply_runs(self._codes, changes.runs)
        for code, holder_set in changes.sets:
            assert code >= FIRST_SET and code not in self._sets, "a code is of one set alone"
            self._sets[code] = holder_set
        return changes

    @property
    def cells(self) -> list[BlockState | HolderSet]:
        return [self._sets[code] if code >= FIRST_SET else BlockState(code) for code in self._codes]


class Watched:
    """The holders of a cache by numbers of their own, and two pictures: one that is told after
    every call, and one that is told now and then."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.often, self.seldom = Picture(cache), Picture(cache)
        self._numbers: dict[int, tuple[int, int]] = {}
        self._tables: list[BlockTable] = []

    def holders(self, tables: list[BlockTable]) -> list[Holder]:
        """A table that was given back and taken again is told as another admission."""
        for table in tables:
            if id(table) not in self._numbers:
                self._tables.append(table)  # its id is not another's as long as it lives
                self._numbers[id(table)] = len(self._tables), 0
        held = {id(table) for table in tables}
        for key, (number, admission) in self._numbers.items():
            if key not in held:
                self._numbers[key] = number, admission + 1
        return [Holder(*self._numbers[id(table)], table) for table in tables]

    def check(self, tables: list[BlockTable], *, tells_seldom: bool) -> None:
        holders = self.holders(tables)
        self.often.take(holders)
        wanted = self._cells(holders)
        assert self.often.cells == wanted
        assert self.often.take(holders) == ([], []), "what has not changed is not told again"
        if tells_seldom:
            self.seldom.take(holders)
            assert self.seldom.cells == wanted
            whole = Picture(self.cache)
            whole.take(holders)
            assert whole.cells == wanted

    def _cells(self, holders: list[Holder]) -> list[BlockState | HolderSet]:
        """What each block holds, by what tables and pins list and by the counts of the others."""
        held: dict[int, list[int]] = defaultdict(list)
        for number, _, table in holders:
            for block_id in held_by(table):
                held[block_id].append(number)
        cells: list[BlockState | HolderSet] = [BlockState(s) for s in self.cache.block_states]
        for block_id, numbers in held.items():
            assert cells[block_id] in (BlockState.HELD, BlockState.PINNED)
            if cells[block_id] is BlockState.HELD:
                cells[block_id] = tuple(sorted(numbers))
        pinned = {block_id for block_id, s in enumerate(cells) if s is BlockState.PINNED}
        assert pinned == set(self.cache.pins.holders())
        assert cells[NULL_BLOCK] is BlockState.NULL
        counts = Counter(each for each in cells if isinstance(each, BlockState))
        usage, host = self.cache.usage, self.cache.host_usage
        assert counts[BlockState.FREE] == usage.free
        assert counts[BlockState.CACHED] == usage.cached
        assert counts[BlockState.HELD] == 0, "whoever holds a block is told"
        assert sum(isinstance(each, tuple) for each in cells) == usage.active
        assert counts[BlockState.HOST_CACHED] == host.cached
        assert counts[BlockState.SWAPPED] == host.swapped
        return cells


class WatchedCacheMachine(CacheMachine):
    """The calls of `CacheMachine` under a watch."""

    @initialize(config=cache_machine.CONFIGS)
    def build(self, config: CacheConfig) -> None:
        super().build(config)
        self.watched, self.tells_seldom = Watched(self.cache), False

    @rule()
    def tell_seldom(self) -> None:
        self.tells_seldom = True

    @invariant()
    def the_picture_is_what_the_cache_holds(self) -> None:
        if hasattr(self, "watched"):
            tables = [live.table for live in self.live]
            self.watched.check(tables, tells_seldom=self.tells_seldom)
            self.tells_seldom = False


class WatchedSwapMachine(SwapMachine):
    """The calls of `SwapMachine`, with a host and forks, under a watch."""

    @initialize(config=swap_machine.CONFIGS, offloads=st.booleans())
    def build(self, config: CacheConfig, offloads: bool) -> None:
        super().build(config, offloads)
        self.watched = Watched(self.cache)

    @invariant()
    def the_picture_is_what_the_cache_holds(self) -> None:
        if hasattr(self, "watched"):
            self.watched.check([live.table for live in self.live], tells_seldom=True)


TestWatchedCacheMachine = WatchedCacheMachine.TestCase
TestWatchedCacheMachine.settings = cases(60)
TestWatchedSwapMachine = WatchedSwapMachine.TestCase
TestWatchedSwapMachine.settings = cases(60)


def test_runs_are_as_few_as_can_be() -> None:
    cache = KVCache(CacheConfig(12, 2))
    watch = BlockWatch(cache)
    assert watch.changes([]) == ([0, 1, BlockState.NULL, 1, 11, BlockState.FREE], [])
    table = cache.open_table()
    assert cache.admit(table, [7] * 6) == 0
    (ids,) = table.block_ids
    holders = [Holder(5, 1, table)]
    first = min(ids)
    assert watch.changes(holders) == ([first, 3, FIRST_SET], [(FIRST_SET, (5,))])
    assert watch.changes(holders) == ([], [])
    cache.release(table)
    assert watch.changes([]) == ([first, 3, BlockState.FREE], [])


def test_a_table_that_is_admitted_again_between_two_frames_is_followed() -> None:
    cache = KVCache(CacheConfig(12, 2))
    watch, table = BlockWatch(cache), cache.open_table()
    codes = [-1] * 12
    for admission, num_tokens in enumerate((9, 4, 11)):
        assert cache.admit(table, [7] * num_tokens) == 0
        runs, _ = watch.changes([Holder(0, admission, table)])
        apply_runs(codes, runs)
        held = {block_id for block_id, code in enumerate(codes) if code >= FIRST_SET}
        assert held == set(held_by(table))
        cache.release(table)


def test_a_block_that_one_group_gives_back_and_another_takes_is_followed() -> None:
    """The last free block goes from the window of the second group to the first in one call."""
    window = AttentionPattern(AttentionType.SLIDING, 2)
    cache = KVCache(CacheConfig(7, 2, False, groups=(FULL, window), max_chunk_tokens=2))
    watched, table = Watched(cache), cache.open_table()
    assert cache.admit(table, [7, 7]) == 0
    for end in range(2, 10):
        if cache.grow(table, end - 1, end) is None:
            break
        watched.check([table], tells_seldom=end % 2 == 0)
    assert table.num_passed[1] > 1


def test_blocks_that_hundreds_share_are_told() -> None:
    cache = KVCache(CacheConfig(600, 2))
    first = cache.open_table()
    assert cache.admit(first, [7, 8, 9]) == 0
    cache.advance(first, [7, 8, 9], 3)
    tables = [first, *(cache.open_table() for _ in range(299))]
    for table in tables[1:]:
        assert cache.admit(table, [7, 8, 9]) == 2
    picture = Picture(cache)
    picture.take([Holder(number, 0, table) for number, table in enumerate(tables)])
    shared = first.block_ids[0][0]
    assert picture.cells[shared] == tuple(range(300))
    assert picture.cells.count(BlockState.FREE) == cache.usage.free


@given(runs=st.lists(st.integers(-3, 12), max_size=9))
def test_runs_that_do_not_fit_are_refused(runs: list[int]) -> None:
    codes = [0] * 8
    parts = [runs[index : index + 3] for index in range(0, len(runs), 3)]
    fits = all(
        len(part) == 3 and part[0] >= 0 and part[1] > 0 and part[0] + part[1] <= 8 for part in parts
    )
    if fits:
        apply_runs(codes, runs)
        assert len(codes) == 8
    else:
        with pytest.raises(ValueError):
            apply_runs(codes, runs)


def test_a_watch_that_forgets_releases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(watch: BlockWatch, number: int, touched: set[int]) -> None:
        """Plant a fault: who has gone is told as a holder still."""

    monkeypatch.setattr(BlockWatch, "_let_go", forgets)
    machine = WatchedCacheMachine()
    machine.build(CacheConfig(num_blocks=12, block_size=2, enable_kv_cache_events=True))
    machine.admit_twice([0, 1, 0, 1, 0], OPEN)
    machine.the_picture_is_what_the_cache_holds()
    for _ in range(2):
        machine.release(pick=0)
    machine.admit([2] * 20, OPEN, keep_free=0)
    with pytest.raises(AssertionError):
        machine.the_picture_is_what_the_cache_holds()
