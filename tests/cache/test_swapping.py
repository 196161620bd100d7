"""Swap, spill and fork by the cache's door, as a state machine over made-up memory: whatever is
called between two steps, each request finds what it has computed, and the accounts balance.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.cache.block_pool import NULL_BLOCK
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache, Short
from quire.cache.moves import Move, MoveKind, batches
from quire.cache.reuse import Reuse
from quire.cache.spec import FULL, Kind, Retention
from quire.cache.swapping import Stake

COMMON = [0, 1, 1, 0, 1, 0, 0, 1] * 2
TOKENS = st.builds(
    lambda shared, own: COMMON[:shared] + own,
    st.integers(0, len(COMMON)),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
)
GROUPS = st.lists(
    st.one_of(
        st.just(FULL),
        st.builds(Retention, st.sampled_from([Kind.SLIDING, Kind.LOCAL]), st.integers(1, 12)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
Slot = tuple[int, int]
Content = tuple[int, Reuse, tuple[int, ...]]
"""Of one token place: the group, and all tokens up to this one."""


@dataclass(eq=False)
class Live:
    """`end`: where its chunk of the coming step ends, if it has one."""

    table: BlockTable
    tokens: list[int]
    num_computed: int = 0
    end: int | None = None


class SwapMachine(RuleBasedStateMachine):
    """Calls until `step`, which does the moves in their order and then computes all chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Live] = []
        self.swapped: list[Live] = []
        self.device: dict[Slot, Content] = {}
        self.host: dict[Slot, Content] = {}

    @initialize(
        num_blocks=st.integers(3, 24),
        num_host_blocks=st.integers(0, 12),
        block_size=st.integers(1, 4),
        reuse=st.booleans(),
        groups=st.just((FULL,)) | GROUPS,
    )
    def build(
        self,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        reuse: bool,
        groups: tuple[Retention, ...],
    ) -> None:
        self.block_size, self.groups, self.reuse = block_size, groups, reuse
        self.cache = KVCache(
            CacheConfig(num_blocks, block_size, reuse, groups, 6, num_host_blocks=num_host_blocks)
        )

    @rule(spills=st.booleans())
    def spill_or_not(self, spills: bool) -> None:
        self.cache.spills = spills

    @rule(tokens=TOKENS, salt=st.sampled_from([b"", b"a"]), use_host=st.booleans())
    def admit(self, tokens: list[int], salt: bytes, use_host: bool) -> None:
        live = Live(self.cache.open_table(Reuse(salt)), tokens)
        found = self.cache.admit(live.table, tokens, use_host=use_host)
        if not isinstance(found, Short):
            self.begin(live, found)

    @precondition(lambda self: self.swapped)
    @rule(pick=st.integers(0, 100), reuse=st.booleans(), keep_free=st.integers(0, 1))
    def resume(self, pick: int, reuse: bool, keep_free: int) -> None:
        live = self.swapped[pick % len(self.swapped)]
        swap = live.table.swap
        assert swap is not None
        found = self.cache.admit(live.table, live.tokens, reuse=reuse, keep_free=keep_free)
        if isinstance(found, Short):
            assert live.table.swap is swap
            return
        assert found >= swap.num_computed, "what the host has promised is there"
        self.swapped.remove(live)
        self.begin(live, found)

    def begin(self, live: Live, found: int) -> None:
        assert found < len(live.tokens)
        live.num_computed = found
        live.end = min(len(live.tokens), found + 6)
        self.live.append(live)

    @precondition(lambda self: self.idle)
    @rule(pick=st.integers(0, 100), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, pick: int, more: list[int]) -> None:
        live = self.idle[pick % len(self.idle)]
        live.tokens.extend(more)
        end = min(len(live.tokens), live.num_computed + 6)
        if self.cache.grow(live.table, live.num_computed, end) is not None:
            live.end = end

    @precondition(lambda self: self.idle)
    @rule(pick=st.integers(0, 100), drawn=st.integers(0, 1))
    def swap_out(self, pick: int, drawn: int) -> None:
        live = self.idle[pick % len(self.idle)]
        if live.num_computed == len(live.tokens):
            live.tokens.append(drawn)
        stake = self.cache.stake(live.table, live.num_computed)
        assert stake.num_blocks <= len(held_by(live.table))
        assert stake.num_tokens <= live.num_computed
        if self.cache.swap_out(live.table, live.num_computed):
            self.live.remove(live)
            self.swapped.append(live)

    @precondition(lambda self: self.idle)
    @rule(pick=st.integers(0, 100), share=st.floats(0, 1), extra=st.integers(0, 1))
    def fork(self, pick: int, share: float, extra: int) -> None:
        source = self.idle[pick % len(self.idle)]
        num_tokens = int(share * source.num_computed)
        tokens = [*source.tokens[:num_tokens], extra]
        child = Live(self.cache.open_table(source.table.reuse), tokens)
        forked = self.cache.fork(source.table, child.table, num_tokens)
        if forked is True:
            self.begin(child, num_tokens)
        elif forked is False:
            assert self.groups != (FULL,), "what sees all has given nothing back"

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        self.cache.release(self.live.pop(pick % len(self.live)).table)

    @precondition(lambda self: self.swapped)
    @rule(pick=st.integers(0, 100))
    def forget(self, pick: int) -> None:
        live = self.swapped.pop(pick % len(self.swapped))
        self.cache.forget(live.table)
        assert live.table.swap is None

    @rule()
    def step(self) -> None:
        for move in self.cache.take_moves():
            self.move(move)
        for live in self.live:
            if live.end is not None:
                self.compute(live, live.end)
        for live in self.live:
            self.cache.advance(live.table, live.tokens, live.num_computed)

    def move(self, move: Move) -> None:
        source = self.host if move.kind is MoveKind.IN else self.device
        target = self.host if move.kind is MoveKind.OUT else self.device
        for offset in range(self.block_size):
            content = source.get((move.source, offset))
            target.pop((move.target, offset), None)
            if content is not None:
                target[move.target, offset] = content

    def compute(self, live: Live, end: int) -> None:
        """What a chunk's tokens can see is there when it runs, and they are afterwards."""
        self.check_seen(live)
        for group, ids in enumerate(live.table.block_ids):
            for position in range(live.num_computed, end):
                block_id = ids[position // self.block_size]
                assert block_id != NULL_BLOCK
                slot = block_id, position % self.block_size
                self.device[slot] = self.content(live, group, position)
        live.num_computed, live.end = end, None

    def check_seen(self, live: Live) -> None:
        for group, retention in enumerate(self.groups):
            ids = live.table.block_ids[group]
            for position in range(retention.first_needed(live.num_computed), live.num_computed):
                slot = ids[position // self.block_size], position % self.block_size
                assert self.device[slot] == self.content(live, group, position)

    def content(self, live: Live, group: int, position: int) -> Content:
        return group, live.table.reuse, tuple(live.tokens[: position + 1])

    @property
    def idle(self) -> list[Live]:
        return [live for live in self.live if live.end is None and live.num_computed > 0]

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert sum(self.cache.usage) == self.cache.num_usable_blocks
        promised = {key for live in self.swapped for key in self.swap_keys(live)}
        private = sum(len(live.table.swap.private) for live in self.swapped if live.table.swap)
        assert private <= self.cache.host_usage.swapped <= private + len(promised)

    def swap_keys(self, live: Live) -> tuple[bytes, ...]:
        return () if live.table.swap is None else live.table.swap.keys


TestSwapMachine = SwapMachine.TestCase


def held_by(table: BlockTable) -> list[int]:
    return [block_id for ids in table.block_ids for block_id in ids if block_id != NULL_BLOCK]


def build(
    num_blocks: int = 9, num_host_blocks: int = 8, *, enable_prefix_caching: bool = True
) -> KVCache:
    return KVCache(
        CacheConfig(num_blocks, 2, enable_prefix_caching, num_host_blocks=num_host_blocks)
    )


def admitted(cache: KVCache, tokens: list[int]) -> BlockTable:
    table = cache.open_table()
    assert not isinstance(cache.admit(table, tokens), Short)
    cache.advance(table, tokens, len(tokens))
    return table


def test_sealed_blocks_stay_and_the_partial_one_is_copied() -> None:
    cache = build()
    table = admitted(cache, [1, 2, 3, 4, 5])
    (last,) = table.block_ids[0][2:]
    assert cache.swap_out(table, 5)
    (move,) = cache.take_moves()
    assert move.kind is MoveKind.OUT and move.source == last
    assert cache.usage.active == 0 and cache.usage.cached == 2
    assert cache.host_usage == (0, 1)
    assert cache.admit(table, [1, 2, 3, 4, 5, 6]) == 5
    assert [move.kind for move in cache.take_moves()] == [MoveKind.IN]
    assert cache.host_usage == (0, 0)


def test_without_prefix_caching_every_block_is_copied() -> None:
    cache = build(enable_prefix_caching=False)
    table = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.swap_out(table, 5)
    assert len(cache.take_moves()) == cache.host_usage.swapped == 3
    assert cache.admit(table, [1, 2, 3, 4, 5, 6]) == 5
    assert len(cache.take_moves()) == 3


def test_an_evicted_prefix_comes_back_from_the_host() -> None:
    cache = build(num_blocks=5)
    cache.release(admitted(cache, [1, 2, 3, 4, 5]))
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    outs = cache.take_moves()
    assert [move.kind for move in outs] == [MoveKind.OUT] * 2
    table = cache.open_table()
    assert cache.admit(table, [1, 2, 3, 4, 5]) == 4
    ins = [move for move in cache.take_moves() if move.kind is MoveKind.IN]
    assert [move.source for move in ins] == [move.target for move in reversed(outs)]
    assert [move.target for move in ins] == table.block_ids[0][:2]


def test_only_what_is_claimed_goes_to_the_host_where_spills_are_off() -> None:
    cache = build(num_blocks=5)
    cache.spills = False
    claimed = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.swap_out(claimed, 5)
    cache.take_moves()
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    assert len(cache.take_moves()) == 2, "of the swapped request"
    cache.release(admitted(cache, [2, 2, 2, 2, 2, 2, 2, 2]))
    assert not cache.take_moves()
    assert cache.admit(claimed, [1, 2, 3, 4, 5, 6]) == 5


def test_a_hit_that_the_host_loses_to_make_room_is_computed() -> None:
    cache = build(num_blocks=5, num_host_blocks=2)
    cache.release(admitted(cache, [1, 2, 3, 4, 5]))
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    assert cache.host_usage.cached == 2
    assert cache.admit(cache.open_table(), [1, 2, 3, 4, 5]) == 0
    assert not [move for move in cache.take_moves() if move.kind is MoveKind.IN]
    assert cache.usage.active == 3


def test_the_host_is_not_used_where_computing_is_cheaper() -> None:
    cache = build(num_blocks=5)
    cache.release(admitted(cache, [1, 2, 3, 4, 5]))
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    assert cache.admit(cache.open_table(), [1, 2, 3, 4, 5], use_host=False) == 0


def test_a_full_host_takes_nobody_in() -> None:
    cache = build(num_host_blocks=2)
    table = admitted(cache, [1, 2, 3, 4, 5])
    assert not cache.swap_out(table, 5)
    assert cache.usage.active == 3 and not cache.take_moves()


def test_forks_share_full_blocks_and_copy_the_last() -> None:
    cache = build()
    source = admitted(cache, [1, 2, 3, 4, 5, 6])
    before = cache.usage.active
    children = [cache.open_table() for _ in range(3)]
    for child in children:
        assert cache.fork(source, child, 5) is True
        assert child.block_ids[0][:2] == source.block_ids[0][:2]
    assert cache.usage.active == before + len(children)
    (batch,) = batches(cache.take_moves())
    assert batch.sources == [source.block_ids[0][2]] * 3
    assert batch.targets == [child.block_ids[0][2] for child in children]


def test_what_others_hold_is_not_at_stake() -> None:
    cache = build()
    first, second = (admitted(cache, [1, 2, 3, 4, tail]) for tail in (5, 6))
    assert cache.stake(second, 5) == Stake(num_blocks=1, num_tokens=1)
    cache.release(first)
    assert cache.stake(second, 5) == Stake(num_blocks=3, num_tokens=5)
