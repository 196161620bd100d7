"""Law 2 on the cache's door, as a state machine: accounts balance after every call, whatever the
calls, the layer groups and the hash; and what examples make plain.
"""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.cache.block_hash import BlockHash
from quire.cache.block_pool import NULL_BLOCK, AccountsError
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache, Short
from quire.cache.prefix_miss import MissKind
from quire.cache.reuse import Reuse
from quire.cache.spec import FULL, Kind, Retention
from tests.cache.contents import COLLIDING, REUSES, SHA256, SHA256_CBOR, Shown, replay, shown

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)
GROUPS = st.lists(
    st.one_of(
        st.just(FULL),
        st.builds(Retention, st.sampled_from([Kind.SLIDING, Kind.LOCAL]), st.integers(1, 12)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@dataclass
class Live:
    """A request as the machine plays it: its first `num_computed` tokens lie in blocks."""

    table: BlockTable
    tokens: list[int]
    num_computed: int
    num_resets: int


class CacheMachine(RuleBasedStateMachine):
    """Holds a model beside the cache: what was written to each block, by group, and after how many
    resets; and the digests that can be found, as events tell them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Live] = []
        self.written: dict[int, tuple[int, Shown]] = {}
        self.written_after: dict[int, int] = {}
        self.num_resets = 0
        self.told: set[tuple[int, bytes]] = set()

    @initialize(
        num_blocks=st.integers(2, 40),
        block_size=st.integers(1, 5),
        reuse=st.booleans(),
        groups=st.just((FULL,)) | GROUPS,
        max_chunk_tokens=st.integers(1, 12),
        block_hash=st.sampled_from([SHA256, SHA256, SHA256_CBOR, *COLLIDING]),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        reuse: bool,
        groups: tuple[Retention, ...],
        max_chunk_tokens: int,
        block_hash: BlockHash,
    ) -> None:
        self.block_size = block_size
        self.reuse = reuse
        self.groups = groups
        self.max_chunk_tokens = max_chunk_tokens
        self.collides = block_hash in COLLIDING
        self.cache = KVCache(
            CacheConfig(
                num_blocks,
                block_size,
                reuse,
                groups,
                max_chunk_tokens,
                block_hash=block_hash,
                enable_kv_cache_events=True,
            )
        )

    def _content(self, live: Live, group: int, index: int) -> tuple[int, Shown]:
        return group, shown(live.table.reuse, live.tokens, index, self.block_size)

    def _compute(self, live: Live, end: int) -> None:
        """Every block that the chunk fills now holds its whole prefix."""
        first, last = live.num_computed // self.block_size, end // self.block_size
        for group, block_ids in enumerate(live.table.block_ids):
            for index in range(first, last):
                self.written[block_ids[index]] = self._content(live, group, index)
                self.written_after[block_ids[index]] = live.num_resets
        live.num_computed = end

    @rule(tokens=TOKENS, reuse=REUSES, keep_free=st.integers(0, 2))
    def admit(self, tokens: list[int], reuse: Reuse, keep_free: int) -> None:
        before = self.cache.usage
        table = self.cache.open_table(reuse)
        admitted = self.cache.admit(table, tokens, keep_free=keep_free)
        if isinstance(admitted, Short):
            assert admitted.num_blocks > 0
            assert self.cache.usage == before, "a refused take changes nothing"
            assert not any(table.block_ids)
            return
        assert admitted < len(tokens), "one token at least is left to compute"
        assert admitted == 0 or self.reuse
        assert self.cache.usage.free + self.cache.usage.cached >= keep_free
        live = Live(table, tokens, admitted, self.num_resets)
        self._check_found(live)
        self._compute(live, min(len(tokens), admitted + self.max_chunk_tokens))
        self.live.append(live)

    def _check_found(self, live: Live) -> None:
        num_found, most = live.num_computed // self.block_size, len(live.tokens) - 1
        for ids in live.table.block_ids:
            for block_id in ids[:num_found]:
                assert block_id == NULL_BLOCK or self.written_after[block_id] == self.num_resets
        miss = self.cache.explain_miss(live.table, live.tokens, live.num_computed)
        if not self.reuse or (num_found == most // self.block_size and num_found):
            assert miss is None
        elif most < self.block_size:
            assert miss == (MissKind.TOO_SHORT, len(live.tokens))
        else:
            assert miss is not None
            assert 0 <= miss.number - live.num_computed < self.block_size
            assert miss.kind is MissKind.DIFFERS or miss.number == live.num_computed
        if self.reuse and self.groups == (FULL,):
            digests = live.table.chain.digests[: most // self.block_size]
            told = [(0, digest) in self.told for digest in digests]
            num_told = [*told, False].index(False)
            assert num_found == num_told or (self.collides and num_found < num_told)

    @rule()
    def reset(self) -> None:
        before = self.cache.usage
        self.cache.reset()
        self.num_resets += 1
        assert self.cache.usage == (before.free + before.cached, 0, before.active)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100), more=st.lists(st.integers(0, 2), max_size=8))
    def grow(self, pick: int, more: list[int]) -> None:
        live = self.live[pick % len(self.live)]
        live.tokens.extend(more)
        end = min(len(live.tokens), live.num_computed + self.max_chunk_tokens)
        held = [list(ids) for ids in live.table.block_ids]
        grown = self.cache.grow(live.table, live.num_computed, end)
        if grown is None:
            assert [len(ids) for ids in live.table.block_ids] == [len(ids) for ids in held]
            return
        for group, (before, now) in enumerate(zip(held, live.table.block_ids, strict=True)):
            added = list(grown[group]) if grown else []
            kept = [old for old, new in zip(before, now, strict=False) if new != NULL_BLOCK]
            assert [new for new in now[: len(before)] if new != NULL_BLOCK] == kept
            assert now[len(before) :] == added, "tables only grow"
        self._compute(live, end)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100), share=st.floats(0, 1))
    def advance(self, pick: int, share: float) -> None:
        live = self.live[pick % len(self.live)]
        self.cache.advance(live.table, live.tokens, int(share * live.num_computed))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        live = self.live.pop(pick % len(self.live))
        self.cache.release(live.table)
        assert not any(live.table.block_ids)
        with pytest.raises(AccountsError):
            self.cache.release(live.table)

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        usage = self.cache.usage
        assert sum(usage) == self.cache.num_usable_blocks
        owned = {block_id for live in self.live for block_id in held_by(live.table)}
        assert usage.active == len(owned)

    @invariant()
    def events_tell_what_can_be_found(self) -> None:
        if not hasattr(self, "cache"):
            return
        for event in self.cache.take_kv_events():
            replay(event, self.told)
        usage = self.cache.usage
        assert usage.cached <= len(self.told) <= usage.cached + usage.active

    @invariant()
    def every_group_has_what_its_next_token_can_see(self) -> None:
        for live in self.live:
            for group, retention in enumerate(self.groups):
                block_ids = live.table.block_ids[group]
                first = retention.first_needed(live.num_computed) // self.block_size
                for index in range(first, live.num_computed // self.block_size):
                    assert self.written[block_ids[index]] == self._content(live, group, index)

    @invariant()
    def nobody_holds_more_than_the_worst_case(self) -> None:
        for live in self.live:
            assert len(held_by(live.table)) <= self.cache.max_blocks(len(live.tokens))


def held_by(table: BlockTable) -> list[int]:
    return [block_id for ids in table.block_ids for block_id in ids if block_id != NULL_BLOCK]


TestCacheMachine = CacheMachine.TestCase


def build(num_blocks: int = 8, block_size: int = 2) -> KVCache:
    return KVCache(CacheConfig(num_blocks, block_size))


def admit(cache: KVCache, tokens: list[int], salt: bytes = b"") -> tuple[BlockTable, int]:
    table = cache.open_table(Reuse(salt))
    admitted = cache.admit(table, tokens)
    assert isinstance(admitted, int)
    cache.advance(table, tokens, len(tokens))
    return table, admitted


def test_the_same_prompt_is_found_again() -> None:
    cache = build()
    first, _ = admit(cache, [1, 2, 3, 4, 5])
    second, hit = admit(cache, [1, 2, 3, 4, 6])
    assert hit == 4
    assert second.block_ids[0][:2] == first.block_ids[0][:2]
    assert second.block_ids[0][2] != first.block_ids[0][2]


def test_a_block_is_not_shared_before_it_is_sealed() -> None:
    cache = build()
    assert cache.admit(cache.open_table(), [1, 2, 3]) == 0
    assert cache.admit(cache.open_table(), [1, 2, 3]) == 0


def test_another_salt_shares_nothing() -> None:
    cache = build(num_blocks=16)
    admit(cache, [1, 2, 3, 4, 5], salt=b"a")
    assert admit(cache, [1, 2, 3, 4, 5], salt=b"b")[1] == 0
    assert admit(cache, [1, 2, 3, 4, 5], salt=b"a")[1] == 4


def test_an_equal_block_after_another_prefix_is_not_shared() -> None:
    cache = build(num_blocks=16)
    admit(cache, [1, 2, 3, 4, 0])
    assert admit(cache, [9, 9, 3, 4, 0])[1] == 0


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    cache = build(num_blocks=5)
    table, _ = admit(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    cache.release(table)
    other, _ = admit(cache, [9, 9, 9, 9])
    cache.release(other)
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 4


def test_the_least_recently_used_is_evicted_first() -> None:
    cache = build(num_blocks=5)
    for tokens in ([1, 1, 0], [2, 2, 0]):
        cache.release(admit(cache, tokens)[0])
    cache.release(admit(cache, [1, 1, 0])[0])  # used again, so [2, 2] is the oldest
    cache.release(admit(cache, [3, 3, 3, 3, 3, 3])[0])
    assert admit(cache, [1, 1, 0])[1] == 2


def test_reuse_can_be_declined() -> None:
    cache = build()
    admit(cache, [1, 2, 3])
    assert cache.admit(cache.open_table(), [1, 2, 3], reuse=False) == 0


def test_too_few_blocks_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1, must be 2 or more"):
        CacheConfig(num_blocks=1, block_size=16)
    with pytest.raises(ValueError, match="block_size is 0"):
        CacheConfig(num_blocks=9, block_size=0)


SLIDING = Retention(Kind.SLIDING, 4)
LOCAL = Retention(Kind.LOCAL, 8)


def build_mixed(*groups: Retention, num_blocks: int = 64, max_chunk_tokens: int = 8) -> KVCache:
    return KVCache(CacheConfig(num_blocks, 2, True, groups, max_chunk_tokens))


def compute(cache: KVCache, tokens: list[int], chunk: int = 8) -> tuple[BlockTable, int]:
    """Admit and go through all of `tokens`, chunk by chunk."""
    table = cache.open_table()
    found = cache.admit(table, tokens)
    assert isinstance(found, int)
    for start in range(found, len(tokens), chunk):
        end = min(start + chunk, len(tokens))
        assert cache.grow(table, start, end) is not None
        cache.advance(table, tokens, end)
    return table, found


@pytest.mark.parametrize("retention", [SLIDING, LOCAL], ids=str)
def test_a_request_of_twenty_windows_never_holds_more_than_its_worst_case(
    retention: Retention,
) -> None:
    assert retention.reach is not None
    num_tokens = 20 * retention.reach
    worst = retention.max_blocks(num_tokens, block_size=2, max_chunk_tokens=8)
    cache = build_mixed(retention, num_blocks=worst + 1)
    table, _ = compute(cache, list(range(num_tokens)))
    for end in range(num_tokens + 1, num_tokens + 30):  # and then token by token
        assert cache.grow(table, end - 1, end) is not None
        cache.advance(table, list(range(end)), end)
        assert cache.usage.active <= retention.max_blocks(end, block_size=2, max_chunk_tokens=1)


def test_full_groups_keep_growing_where_windows_do_not() -> None:
    cache = build_mixed(FULL, SLIDING)
    table, _ = compute(cache, list(range(40)))
    full, sliding = table.block_ids
    assert len(full) == len(sliding) == 20
    assert NULL_BLOCK not in full
    assert sliding[:18] == [NULL_BLOCK] * 18
    assert NULL_BLOCK not in sliding[18:]


def test_a_mixed_prefix_is_as_long_as_every_group_can_honour() -> None:
    cache = build_mixed(FULL, SLIDING)
    prompt = list(range(40))
    cache.release(compute(cache, prompt)[0])
    table, found = compute(cache, [*prompt, 99])
    assert found == 40
    assert table.block_ids[1][:18] == [NULL_BLOCK] * 18
    assert cache.usage.active == 21 + 2


def test_a_window_that_lost_its_blocks_shortens_the_hit() -> None:
    cache = build_mixed(FULL, SLIDING, num_blocks=24)
    first, _ = compute(cache, list(range(20)))
    cache.release(first)
    cache.release(compute(cache, list(range(50, 64)))[0])  # evicts what is oldest
    _, found = compute(cache, [*range(20), 99])
    assert found < 20
    cache.check()


def test_a_chunk_that_begins_anew_needs_nothing_of_the_one_before() -> None:
    cache = build_mixed(LOCAL)
    cache.release(compute(cache, list(range(16)))[0])
    table, found = compute(cache, [*range(16), 99])
    assert found == 16
    assert table.block_ids[0][:8] == [NULL_BLOCK] * 8


def test_one_content_lies_in_another_block_in_each_group() -> None:
    cache = build_mixed(FULL, FULL)
    first, _ = compute(cache, list(range(6)))
    second, found = compute(cache, [*range(6), 9])
    assert found == 6
    assert not set(second.block_ids[0]) & set(second.block_ids[1])
    assert second.block_ids[0][:3] == first.block_ids[0]
    assert second.block_ids[1][:3] == first.block_ids[1]


def test_a_mixed_take_that_fails_in_a_later_group_takes_nothing() -> None:
    cache = build_mixed(FULL, FULL, num_blocks=6)
    table = cache.open_table()
    assert cache.admit(table, [1, 2, 3]) == 0  # two blocks in each group, one left
    before = cache.usage
    assert cache.grow(table, 3, 5) is None
    assert cache.usage == before
    cache.check()


def test_a_model_without_attention_needs_no_block() -> None:
    cache = KVCache(CacheConfig(1, 16, True, groups=()))
    table = cache.open_table()
    assert cache.admit(table, list(range(100))) == 0
    assert cache.grow(table, 100, 101) == ()
    cache.advance(table, list(range(101)), 101)
    assert cache.admit(cache.open_table(), list(range(100))) == 0, "nothing is kept to be found"
    cache.release(table)
    assert cache.max_blocks(1000) == 0
