"""The cache's accounts as a state machine: they balance after every call, whatever the calls, the
layer groups and the hash, and what a request holds can be found.
"""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.cache.admission import BlocksMissing
from quire.cache.block_pool import NULL_BLOCK, AccountsError
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.evictable_list import EvictionRank
from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import MissKind
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from tests.cache.contents import COLLIDING, SHA256, SHA256_CBOR, SHARINGS, Shown, replay, shown

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)
GROUPS = st.lists(
    st.one_of(
        st.just(FULL),
        st.builds(
            AttentionPattern,
            st.sampled_from([AttentionType.SLIDING, AttentionType.CHUNKED]),
            st.integers(1, 12),
        ),
    ),
    min_size=1,
    max_size=3,
).map(tuple)

OFTEN = st.sampled_from([True, True, True, False])
CONFIGS = st.builds(
    CacheConfig,
    num_blocks=st.integers(2, 40),
    block_size=st.integers(1, 5),
    enable_prefix_caching=OFTEN,
    groups=st.just((FULL,)) | GROUPS,
    max_chunk_tokens=st.integers(1, 12),
    block_hash=st.sampled_from([SHA256, SHA256_CBOR]) | st.sampled_from(COLLIDING),
    enable_kv_cache_events=st.just(True),
)


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
        self.pinned: dict[str, tuple[SharingTerms, list[int]]] = {}

    @initialize(config=CONFIGS)
    def build(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.caches_prefixes = config.enable_prefix_caching
        self.groups = config.groups
        self.max_chunk_tokens = config.max_chunk_tokens
        self.collides = config.block_hash in COLLIDING
        self.cache = KVCache(config)

    def _content(self, live: Live, group: int, index: int) -> tuple[int, Shown]:
        return group, shown(live.table.sharing, live.tokens, index, self.block_size)

    def _compute(self, live: Live, end: int) -> None:
        """Every block that the chunk fills now holds its whole prefix."""
        first, last = live.num_computed // self.block_size, end // self.block_size
        for group, block_ids in enumerate(live.table.block_ids):
            for index in range(first, last):
                self.written[block_ids[index]] = self._content(live, group, index)
                self.written_after[block_ids[index]] = live.num_resets
        live.num_computed = end

    @rule(tokens=TOKENS, sharing=SHARINGS)
    def admit_twice(self, tokens: list[int], sharing: SharingTerms) -> None:
        """Both compute what of the prompt is not cached yet, and then cache it."""
        num_live = len(self.live)
        for _ in range(2):
            self.admit(list(tokens), sharing, keep_free=0)
        for live in self.live[num_live:]:
            self.cache.advance(live.table, live.tokens, live.num_computed)

    @rule(tokens=TOKENS, sharing=SHARINGS, keep_free=st.integers(0, 2))
    def admit(self, tokens: list[int], sharing: SharingTerms, keep_free: int) -> None:
        before = self.cache.usage
        table = self.cache.open_table(sharing)
        admitted = self.cache.admit(table, tokens, keep_free=keep_free)
        if isinstance(admitted, BlocksMissing):
            assert admitted.num_blocks > 0
            assert self.cache.usage == before, "a refused take changes nothing"
            assert not any(table.block_ids)
            return
        assert admitted < len(tokens), "one token at least is left to compute"
        assert admitted == 0 or self.caches_prefixes
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
        if not self.caches_prefixes or (num_found == most // self.block_size and num_found):
            assert miss is None
        elif most < self.block_size:
            assert miss == (MissKind.TOO_SHORT, len(live.tokens))
        else:
            assert miss is not None
            assert 0 <= miss.number - live.num_computed < self.block_size
            assert miss.kind is MissKind.DIFFERS or miss.number == live.num_computed
        if self.caches_prefixes and self.groups == (FULL,):
            digests = live.table.chain.digests[: most // self.block_size]
            told = [(0, digest) in self.told for digest in digests]
            num_told = [*told, False].index(False)
            assert num_found == num_told or (self.collides and num_found < num_told)

    @rule()
    def reset(self) -> None:
        before = self.cache.usage
        self.cache.reset()
        self.num_resets += 1
        self.pinned.clear()
        owned = self._owned()
        assert self.cache.usage == (sum(before) - len(owned), 0, len(owned), 0)

    @precondition(lambda self: len(self.live) > 1)
    @rule(pick=st.integers(0, 100))
    def release_and_evict(self, pick: int) -> None:
        """Nothing is left of it but what others hold."""
        self.release(pick)
        take_all(self.cache, len(self.groups), self.block_size)

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

    def _owned(self) -> set[int]:
        return {block_id for live in self.live for block_id in held_by(live.table)}

    @precondition(lambda self: self.live)
    @rule(
        pick=st.integers(0, 100),
        share=st.floats(0, 1),
        name=st.sampled_from("abc"),
        max_blocks=st.integers(0, 40),
    )
    def pin(self, pick: int, share: float, name: str, max_blocks: int) -> None:
        """Pin the full blocks of what a request has computed and cached, or of a part of it."""
        live = self.live[pick % len(self.live)]
        num_full = int(share * live.num_computed) // self.block_size
        tokens = live.tokens[: num_full * self.block_size]
        before, held = self.cache.usage, self.cache.pins.num_blocks
        num_new = self.cache.pins.num_new(self.cache.open_table(live.table.sharing), tokens)
        pinned = self.cache.pins.pin(
            name, self.cache.open_table(live.table.sharing), tokens, max_blocks=max_blocks
        )
        if pinned is None:
            is_lost = self.collides or self._find(live, tokens) < len(tokens)
            assert is_lost or not self.caches_prefixes
        elif isinstance(pinned, BlocksMissing):
            assert self.collides or held + num_new == max_blocks + pinned.num_blocks
        else:
            assert self.collides or held + num_new <= max_blocks
            self.pinned[name] = live.table.sharing, tokens
            return
        assert self.cache.usage == before, "a pin that is not made changes nothing"

    def _find(self, live: Live, tokens: list[int]) -> int:
        return self.cache.num_cached(self.cache.open_table(live.table.sharing), [*tokens, 0])

    @rule(name=st.sampled_from("abcd"))
    def unpin(self, name: str) -> None:
        self.cache.pins.unpin(name)
        self.pinned.pop(name, None)

    @precondition(lambda self: self.live)
    @rule(
        pick=st.integers(0, 100),
        share=st.floats(0, 1),
        name=st.sampled_from("abc"),
        rank=st.sampled_from([EvictionRank.ASKED, EvictionRank.EXPECTED]),
    )
    def keep(self, pick: int, share: float, name: str, rank: EvictionRank) -> None:
        """Keep a part of what a request has cached, or will have; nothing is held by that."""
        chain, before = self.live[pick % len(self.live)].table.chain, self.cache.usage
        self.cache.kept.keep(name, chain.digests[: int(share * len(chain.digests))], rank)
        assert self.cache.usage == before

    @rule(name=st.sampled_from("abcd"))
    def let_go(self, name: str) -> None:
        before = self.cache.usage
        self.cache.kept.let_go(name)
        assert self.cache.usage == before

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100), first=st.integers(0, 3))
    def give_up(self, pick: int, first: int) -> None:
        """Give up what a request has cached, though others may keep or hold it."""
        before = self.cache.usage
        self.cache.kept.give_up(self.live[pick % len(self.live)].table.chain.digests, first)
        assert self.cache.usage == before

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
        pinned = set(self.cache.pins.holders())
        assert usage.pinned == self.cache.pins.num_blocks == len(pinned)
        assert usage.active == len(self._owned() - pinned)

    @invariant()
    def what_is_pinned_is_found(self) -> None:
        """Whole, by a prompt that goes on from it, whatever was released, evicted or computed."""
        for sharing, tokens in self.pinned.values():
            table = self.cache.open_table(sharing)
            assert self.cache.num_cached(table, [*tokens, 0]) == len(tokens)

    @invariant()
    def events_tell_what_can_be_found(self) -> None:
        if not hasattr(self, "cache"):
            return
        for event in self.cache.take_kv_events():
            replay(event, self.told)
        usage = self.cache.usage
        most = usage.cached + usage.active + usage.pinned
        assert usage.cached <= len(self.told) <= most

    @invariant()
    def what_is_held_can_be_found(self) -> None:
        """Every full block of a request, whoever else had it and has lost it; but for what was
        computed before a reset, and for digests that other contents have too.
        """
        for live in self.live:
            if live.num_resets != self.num_resets or self.collides:
                continue
            digests = live.table.chain.digests[: live.table.num_cached_blocks]
            for group, block_ids in enumerate(live.table.block_ids):
                for block_id, digest in zip(block_ids, digests, strict=False):
                    assert block_id == NULL_BLOCK or (group, digest) in self.told

    @invariant()
    def every_group_has_what_its_next_token_can_see(self) -> None:
        for live in self.live:
            for group, pattern in enumerate(self.groups):
                block_ids = live.table.block_ids[group]
                first = pattern.first_needed(live.num_computed) // self.block_size
                for index in range(first, live.num_computed // self.block_size):
                    assert self.written[block_ids[index]] == self._content(live, group, index)

    @invariant()
    def nobody_holds_more_than_the_worst_case(self) -> None:
        for live in self.live:
            assert len(held_by(live.table)) <= self.cache.max_blocks(len(live.tokens))


def held_by(table: BlockTable) -> list[int]:
    return [block_id for ids in table.block_ids for block_id in ids if block_id != NULL_BLOCK]


def take_all(cache: KVCache, num_groups: int, block_size: int) -> None:
    """Take every block that can be had, and give all back."""
    tables: list[BlockTable] = []
    while num_blocks := (cache.usage.free + cache.usage.cached) // num_groups:
        table = cache.open_table()
        assert cache.admit(table, [0] * (num_blocks * block_size), use_cache=False) == 0
        tables.append(table)
    for table in tables:
        cache.release(table)
