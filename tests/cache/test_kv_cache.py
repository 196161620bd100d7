"""Law 2 on the cache's door, as a state machine: accounts balance after every call, whatever the
calls.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.cache.block_pool import AccountsError
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache, Short

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


class CacheMachine(RuleBasedStateMachine):
    """Holds a model beside the cache: the tokens that were written to each block."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[tuple[BlockTable, list[int]]] = []
        self.written: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    @initialize(num_blocks=st.integers(2, 24), block_size=st.integers(1, 5), reuse=st.booleans())
    def build(self, num_blocks: int, block_size: int, reuse: bool) -> None:
        self.block_size = block_size
        self.reuse = reuse
        self.cache = KVCache(CacheConfig(num_blocks, block_size, reuse))

    def _write(self, table: BlockTable, tokens: list[int], start: int) -> None:
        """Every full block written from `start` on now holds its whole prefix."""
        for index in range(start // self.block_size, len(tokens) // self.block_size):
            prefix = tuple(tokens[: (index + 1) * self.block_size])
            self.written[table.block_ids[0][index]] = (table.salt, prefix)

    @rule(tokens=TOKENS, salt=st.sampled_from([b"", b"a"]), keep_free=st.integers(0, 2))
    def admit(self, tokens: list[int], salt: bytes, keep_free: int) -> None:
        before = self.cache.usage
        table = self.cache.open_table(salt)
        admitted = self.cache.admit(table, tokens, keep_free=keep_free)
        if isinstance(admitted, Short):
            assert admitted.num_blocks > 0
            assert self.cache.usage == before, "a refused take changes nothing"
            assert table.block_ids == ([],)
            return
        assert admitted < len(tokens), "one token at least is left to compute"
        assert admitted == 0 or self.reuse
        assert self.cache.usage.free + self.cache.usage.cached >= keep_free
        for index in range(admitted // self.block_size):
            prefix = tuple(tokens[: (index + 1) * self.block_size])
            assert self.written[table.block_ids[0][index]] == (salt, prefix)
        self._write(table, tokens, admitted)
        self.live.append((table, tokens))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100), more=st.lists(st.integers(0, 2), min_size=1, max_size=8))
    def grow(self, pick: int, more: list[int]) -> None:
        table, tokens = self.live[pick % len(self.live)]
        before = self.cache.usage
        held = list(table.block_ids[0])
        grown = self.cache.grow(table, len(tokens) + len(more))
        if grown is None:
            assert self.cache.usage == before, "a refused take changes nothing"
            assert table.block_ids[0] == held
            return
        added = [block_id for group in grown for block_id in group]
        assert table.block_ids[0] == held + added, "tables only grow"
        start = len(tokens)
        tokens.extend(more)
        self._write(table, tokens, start)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100), share=st.floats(0, 1))
    def seal(self, pick: int, share: float) -> None:
        table, tokens = self.live[pick % len(self.live)]
        self.cache.seal(table, tokens, int(share * len(tokens)))

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        table, _ = self.live.pop(pick % len(self.live))
        self.cache.release(table)
        assert table.block_ids == ([],)
        with pytest.raises(AccountsError):
            self.cache.release(table)

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        usage = self.cache.usage
        assert sum(usage) == self.cache.num_usable_blocks
        owned = {block_id for table, _ in self.live for block_id in table.block_ids[0]}
        assert usage.active == len(owned)
        assert 0 not in owned, "the null block is never given out"


TestCacheMachine = CacheMachine.TestCase


def build(num_blocks: int = 8, block_size: int = 2) -> KVCache:
    return KVCache(CacheConfig(num_blocks, block_size))


def admit(cache: KVCache, tokens: list[int], salt: bytes = b"") -> tuple[BlockTable, int]:
    table = cache.open_table(salt)
    admitted = cache.admit(table, tokens)
    assert isinstance(admitted, int)
    cache.seal(table, tokens, len(tokens))
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
    assert cache.admit(cache.open_table(b""), [1, 2, 3]) == 0
    assert cache.admit(cache.open_table(b""), [1, 2, 3]) == 0


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
    assert cache.admit(cache.open_table(b""), [1, 2, 3], reuse=False) == 0


def test_too_few_blocks_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1, must be 2 or more"):
        CacheConfig(num_blocks=1, block_size=16)
    with pytest.raises(ValueError, match="block_size is 0"):
        CacheConfig(num_blocks=9, block_size=0)
