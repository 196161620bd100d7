"""Law 2 on the interface of the cache, as a state machine, and what examples make plain."""

from dataclasses import replace

import pytest

from quire.cache.block_pool import NULL_BLOCK
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from tests.cache.cache_machine import CacheMachine, take_all

TestCacheMachine = CacheMachine.TestCase


def build(num_blocks: int = 8, block_size: int = 2) -> KVCache:
    return KVCache(CacheConfig(num_blocks, block_size))


def admit(cache: KVCache, tokens: list[int], salt: bytes = b"") -> tuple[BlockTable, int]:
    table = cache.open_table(SharingTerms(salt))
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


def compute_twice(cache: KVCache, prompt: list[int]) -> tuple[BlockTable, BlockTable]:
    """Two requests that arrive together, so that neither finds what the other computes."""
    first, second = cache.open_table(), cache.open_table()
    for table in (first, second):
        assert cache.admit(table, prompt) == 0
    for table in (first, second):
        cache.advance(table, prompt, len(prompt))
    return first, second


@pytest.mark.parametrize("num_host_blocks", [0, 8])
@pytest.mark.parametrize(
    "groups", [(FULL,), (FULL, AttentionPattern(AttentionType.SLIDING, 6), FULL)]
)
@pytest.mark.parametrize("ends_first", [0, 1])
def test_what_a_request_holds_is_found_when_its_duplicate_is_gone(
    ends_first: int, groups: tuple[AttentionPattern, ...], num_host_blocks: int
) -> None:
    config = CacheConfig(40, 2, True, groups, num_host_blocks=num_host_blocks)
    cache = KVCache(replace(config, enable_kv_cache_events=True))
    tables = compute_twice(cache, [1, 2, 3, 4, 5, 6, 7])
    stored = cache.take_kv_events()
    assert len(stored) == len(groups)
    cache.release(tables[ends_first])
    take_all(cache, len(groups), 2)
    cache.check()
    assert cache.take_kv_events() == (), "who follows the cache is told nothing: it is still there"
    third = cache.open_table()
    assert cache.admit(third, [1, 2, 3, 4, 5, 6, 9]) == 6
    assert third.block_ids[0][:3] == tables[1 - ends_first].block_ids[0][:3]
    assert not cache.take_block_copies()


def test_of_duplicates_that_nobody_holds_one_is_kept() -> None:
    cache = build(num_blocks=20)
    for table in compute_twice(cache, [1, 2, 3, 4, 5]):
        cache.release(table)
    assert cache.usage == (17, 2, 0, 0)
    assert admit(cache, [1, 2, 3, 4, 5])[1] == 4


def test_a_duplicate_of_an_evictable_block_is_found_instead() -> None:
    cache = build(num_blocks=20)
    late, early = cache.open_table(), cache.open_table()
    for table in (late, early):
        assert cache.admit(table, [1, 2, 3, 4, 5]) == 0
    cache.advance(early, [1, 2, 3, 4, 5], 5)
    cache.release(early)
    assert cache.usage == (14, 2, 3, 0)
    cache.advance(late, [1, 2, 3, 4, 5], 5)
    assert cache.usage == (16, 0, 3, 0)
    assert admit(cache, [1, 2, 3, 4, 6])[0].block_ids[0][:2] == late.block_ids[0][:2]
    cache.check()


def test_a_fork_of_a_duplicate_is_found_as_well() -> None:
    cache = build(num_blocks=20)
    first, second = compute_twice(cache, [1, 2, 3, 4, 5])
    child = cache.open_table()
    assert cache.fork(second, child, 4) is True
    cache.release(first)
    cache.release(second)
    take_all(cache, 1, 2)
    assert admit(cache, [1, 2, 3, 4, 6])[1] == 4
    cache.check()


def test_a_reset_forgets_duplicates_too() -> None:
    cache = build(num_blocks=20)
    first, second = compute_twice(cache, [1, 2, 3, 4, 5])
    cache.reset()
    cache.release(first)
    assert admit(cache, [1, 2, 3, 4, 6])[1] == 0
    cache.release(second)
    cache.check()


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
    assert cache.admit(cache.open_table(), [1, 2, 3], use_cache=False) == 0


def test_too_few_blocks_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1, must be 2 or more"):
        CacheConfig(num_blocks=1, block_size=16)
    with pytest.raises(ValueError, match="block_size is 0"):
        CacheConfig(num_blocks=9, block_size=0)


SLIDING = AttentionPattern(AttentionType.SLIDING, 4)
CHUNKED = AttentionPattern(AttentionType.CHUNKED, 8)


def build_mixed(
    *groups: AttentionPattern, num_blocks: int = 64, max_chunk_tokens: int = 8
) -> KVCache:
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
    cache = build_mixed(CHUNKED)
    cache.release(compute(cache, list(range(16)))[0])
    table, found = compute(cache, [*range(16), 99])
    assert found == 16
    assert table.block_ids[0][:8] == [NULL_BLOCK] * 8


def test_a_model_without_attention_needs_no_block() -> None:
    cache = KVCache(CacheConfig(1, 16, True, groups=()))
    table = cache.open_table()
    assert cache.admit(table, list(range(100))) == 0
    assert cache.grow(table, 100, 101) == ()
    cache.advance(table, list(range(101)), 101)
    assert cache.admit(cache.open_table(), list(range(100))) == 0, "nothing is kept to be found"
    cache.release(table)
    assert cache.max_blocks(1000) == 0
