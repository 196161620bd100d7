"""Swap, offload and fork by the interface of the cache: as a state machine, and by example."""

from quire.cache.admission import BlocksMissing
from quire.cache.block_copies import CopyKind, copy_batches
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.swapping import RecomputeCost
from tests.cache.cache_machine import take_all
from tests.cache.swap_machine import SwapMachine

TestSwapMachine = SwapMachine.TestCase


def build(
    num_blocks: int = 9, num_host_blocks: int = 8, *, enable_prefix_caching: bool = True
) -> KVCache:
    return KVCache(
        CacheConfig(num_blocks, 2, enable_prefix_caching, num_host_blocks=num_host_blocks)
    )


def admitted(cache: KVCache, tokens: list[int]) -> BlockTable:
    table = cache.open_table()
    assert not isinstance(cache.admit(table, tokens), BlocksMissing)
    cache.advance(table, tokens, len(tokens))
    return table


def test_cached_blocks_stay_and_the_partial_one_is_copied() -> None:
    cache = build()
    table = admitted(cache, [1, 2, 3, 4, 5])
    (last,) = table.block_ids[0][2:]
    assert cache.swap_out(table, 5)
    (copy,) = cache.take_block_copies()
    assert copy.kind is CopyKind.OUT and copy.source == last
    assert cache.usage.active == 0 and cache.usage.cached == 2
    assert cache.host_usage == (0, 1, 3)
    assert cache.admit(table, [1, 2, 3, 4, 5, 6]) == 5
    assert [copy.kind for copy in cache.take_block_copies()] == [CopyKind.IN]
    assert cache.host_usage == (0, 0, 0)


def test_without_prefix_caching_every_block_is_copied() -> None:
    cache = build(enable_prefix_caching=False)
    table = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.swap_out(table, 5)
    assert len(cache.take_block_copies()) == cache.host_usage.swapped == 3
    assert cache.admit(table, [1, 2, 3, 4, 5, 6]) == 5
    assert len(cache.take_block_copies()) == 3


def test_an_evicted_prefix_comes_back_from_the_host() -> None:
    cache = build(num_blocks=5)
    cache.release(admitted(cache, [1, 2, 3, 4, 5]))
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    outs = cache.take_block_copies()
    assert [copy.kind for copy in outs] == [CopyKind.OUT] * 2
    table = cache.open_table()
    assert cache.admit(table, [1, 2, 3, 4, 5]) == 4
    ins = [copy for copy in cache.take_block_copies() if copy.kind is CopyKind.IN]
    assert [copy.source for copy in ins] == [copy.target for copy in reversed(outs)]
    assert [copy.target for copy in ins] == table.block_ids[0][:2]


def test_only_what_is_retained_goes_to_the_host_without_offloading() -> None:
    cache = build(num_blocks=5)
    cache.offloads = False
    retained = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.swap_out(retained, 5)
    cache.take_block_copies()
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    assert len(cache.take_block_copies()) == 2, "of the swapped request"
    cache.release(admitted(cache, [2, 2, 2, 2, 2, 2, 2, 2]))
    assert not cache.take_block_copies()
    assert cache.admit(retained, [1, 2, 3, 4, 5, 6]) == 5


def test_a_hit_that_the_host_loses_to_make_room_is_computed() -> None:
    cache = build(num_blocks=5, num_host_blocks=2)
    cache.release(admitted(cache, [1, 2, 3, 4, 5]))
    cache.release(admitted(cache, [6, 7, 8, 9, 6, 7, 8, 9]))
    assert cache.host_usage.cached == 2
    assert cache.admit(cache.open_table(), [1, 2, 3, 4, 5]) == 0
    assert not [copy for copy in cache.take_block_copies() if copy.kind is CopyKind.IN]
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
    assert cache.usage.active == 3 and not cache.take_block_copies()


def test_what_a_request_holds_comes_back_though_its_duplicate_was_evicted() -> None:
    cache = build(num_blocks=13)
    cache.offloads = False
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    first, second = cache.open_table(), cache.open_table()
    for table in (first, second):
        assert cache.admit(table, prompt) == 0
    for table in (first, second):
        cache.advance(table, prompt, len(prompt))
    cache.release(first)
    take_all(cache, 1, 2)
    assert cache.swap_out(second, len(prompt))
    take_all(cache, 1, 2)
    cache.check()
    assert cache.admit(second, [*prompt, 0], use_cache=False) == len(prompt)


def test_what_was_computed_before_a_reset_comes_back_and_is_found_by_nobody_else() -> None:
    cache = build(num_blocks=13)
    prompt = [1, 2, 3, 4, 5]
    table = admitted(cache, prompt)
    cache.reset()
    assert cache.swap_out(table, len(prompt))
    assert cache.host_usage.swapped == 3, "nothing of it can be found, so all is copied"
    assert cache.admit(table, [*prompt, 6]) == len(prompt)
    cache.advance(table, [*prompt, 6], len(prompt) + 1)
    cache.release(table)
    assert cache.admit(cache.open_table(), [*prompt, 6, 7]) == 0


def test_a_reset_voids_what_a_swapped_request_retains() -> None:
    cache = build()
    table = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.swap_out(table, 5)
    cache.reset()
    cache.check()
    assert cache.host_usage.swapped == 1
    again = admitted(cache, [1, 2, 3, 4, 5])
    assert cache.admit(table, [1, 2, 3, 4, 5, 6]) == 4, "its last block is of before the reset"
    assert cache.host_usage.swapped == 0
    cache.release(again)
    cache.check()


def test_forks_share_full_blocks_and_copy_the_last() -> None:
    cache = build()
    source = admitted(cache, [1, 2, 3, 4, 5, 6])
    before = cache.usage.active
    children = [cache.open_table() for _ in range(3)]
    for child in children:
        assert cache.fork(source, child, 5) is True
        assert child.block_ids[0][:2] == source.block_ids[0][:2]
    assert cache.usage.active == before + len(children)
    (batch,) = copy_batches(cache.take_block_copies())
    assert batch.sources == [source.block_ids[0][2]] * 3
    assert batch.targets == [child.block_ids[0][2] for child in children]


def test_what_others_hold_is_not_computed_again() -> None:
    cache = build()
    first, second = (admitted(cache, [1, 2, 3, 4, tail]) for tail in (5, 6))
    assert cache.recompute_cost(second, 5) == RecomputeCost(num_blocks=1, num_tokens=1)
    cache.release(first)
    assert cache.recompute_cost(second, 5) == RecomputeCost(num_blocks=3, num_tokens=5)
