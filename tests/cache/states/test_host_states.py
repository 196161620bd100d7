"""States in host memory: of swapped requests, which go on where they were, and evicted snapshots,
which are found again.

The invariants of `tests/engine` run them in random company; these are the decisions one by one.
"""

from dataclasses import replace

import pytest

from quire.cache.admission import BlocksMissing
from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import OPEN
from quire.cache.states.state_pool import StateTier
from quire.cache.swapping import RecomputeCost
from quire.scheduler.prefix_probe import probe_prefix
from tests.cache.states.test_states import CONFIG, SIZE, compute, found, prompt, serve

OLDEST_FIRST = replace(CONFIG.snapshots, gain_weight=0.0)
HOSTED = replace(CONFIG, num_host_blocks=32, num_host_states=4, snapshots=OLDEST_FIRST)
WITHOUT_ATTENTION = replace(HOSTED, groups=(), num_blocks=1, num_host_blocks=0)


def take_copies(cache: KVCache) -> list[BlockCopy]:
    """The copies of states that are due."""
    return [copy for copy in cache.take_block_copies() if copy.kind.is_of_state]


def host_usage(cache: KVCache) -> tuple[int, int]:
    assert cache.states is not None
    return cache.states.host_usage


def read_after(cache: KVCache, table: BlockTable, start: int) -> int:
    """The state that the table's next token reads."""
    use = cache.plan_states(table, start, start + 1)
    assert use is not None
    return use.read


@pytest.mark.parametrize("config", [HOSTED, WITHOUT_ATTENTION], ids=["hybrid", "no attention"])
def test_a_swapped_request_goes_on_after_its_last_token(config: CacheConfig) -> None:
    cache = KVCache(replace(config, enable_prefix_caching=False))
    tokens = prompt(0, 10)
    table = compute(cache, tokens)
    assert table.states is not None
    live = table.states.live
    assert cache.swap_point(table, 10) == 10
    assert cache.swap_out(table, 10)
    (out,) = take_copies(cache)
    assert (out.kind, out.source) == (CopyKind.STATE_OUT, live)
    assert cache.state_usage.active == 0 and host_usage(cache) == (0, 1)
    other = compute(cache, prompt(50, 10))  # has what was its state
    assert cache.admit(table, [*tokens, 10]) == 10
    (back,) = take_copies(cache)
    assert (back.kind, back.source) == (CopyKind.STATE_IN, out.target)
    assert read_after(cache, table, 10) == back.target
    assert host_usage(cache) == (0, 0)
    cache.release(other)
    cache.release(table)
    cache.check()


def test_a_swapped_request_that_is_gone_leaves_its_state() -> None:
    cache = KVCache(HOSTED)
    table = compute(cache, prompt(0, 10))
    assert cache.swap_out(table, 10)
    cache.reset()
    assert host_usage(cache) == (0, 1)
    cache.forget(table)
    assert host_usage(cache) == (0, 0)
    cache.check()


def test_a_state_that_steps_ahead_have_moved_on_is_not_swapped() -> None:
    """The request can go on from its last snapshot."""
    cache = KVCache(HOSTED)
    tokens = prompt(0, 10)
    table = compute(cache, tokens)
    assert cache.grow(table, 10, 11) is not None
    cache.plan_states(table, 10, 11)
    assert not cache.swap_out(table, 10)
    assert table.swap is None and host_usage(cache) == (0, 0)
    assert cache.swap_point(table, 10) == 8
    assert cache.swap_out(table, 8)
    cache.check()
    take_copies(cache)
    assert cache.admit(table, [*tokens, 10]) == 8
    assert not take_copies(cache), "its snapshot is still on the device"


def test_a_swapped_state_is_not_evicted_by_snapshots() -> None:
    cache = KVCache(replace(HOSTED, num_states=4, num_host_states=1))
    tokens = prompt(0, 10)
    table = compute(cache, tokens)
    assert cache.swap_out(table, 10)
    for first in range(100, 600, 100):
        serve(cache, prompt(first, 9))
    assert host_usage(cache) == (0, 1)
    other = compute(cache, prompt(50, 9))
    assert not cache.swap_out(other, 9), "the host has one state"
    cache.release(other)
    assert cache.admit(table, [*tokens, 10]) == 10
    cache.check()


def evicted(config: CacheConfig) -> KVCache:
    """A cache whose snapshot after `prompt(0, 9)` is on the host alone."""
    cache = KVCache(config)
    serve(cache, prompt(0, 9))
    for first in range(100, 400, 100):
        serve(cache, prompt(first, 9))
    assert cache.num_cached(cache.open_table(), prompt(0, 9), use_host=False) == 0
    return cache


FEW = replace(HOSTED, num_states=4)


@pytest.mark.parametrize(
    "config", [FEW, replace(WITHOUT_ATTENTION, num_states=4)], ids=["hybrid", "no attention"]
)
def test_an_evicted_snapshot_is_found_on_the_host_and_is_one_again(config: CacheConfig) -> None:
    cache = evicted(config)
    (out, *_) = [copy for copy in take_copies(cache) if copy.kind is CopyKind.STATE_OUT]
    probed = probe_prefix(cache, prompt(0, 9), OPEN)
    assert (probed.num_cached, probed.num_on_device, probed.state) == (8, 0, StateTier.HOST)
    table = cache.open_table()
    assert cache.admit(table, prompt(0, 9)) == 8
    back = [copy for copy in take_copies(cache) if copy.kind is CopyKind.STATE_IN]
    assert [copy.source for copy in back] == [out.target]
    assert read_after(cache, table, 8) == back[0].target
    cache.advance(table, prompt(0, 9), 9)
    cache.release(table)
    cache.check()
    probed = probe_prefix(cache, prompt(0, 9), OPEN)
    assert (probed.num_cached, probed.num_on_device, probed.state) == (8, 8, StateTier.DEVICE)


def test_where_one_state_is_left_a_snapshot_is_copied_to_the_request_itself() -> None:
    cache = evicted(FEW)
    others = [compute(cache, prompt(first, 3)) for first in (500, 600)]
    take_copies(cache)
    table = cache.open_table()
    assert cache.admit(table, prompt(0, 9)) == 8
    assert table.states is not None
    (back,) = [copy for copy in take_copies(cache) if copy.kind is CopyKind.STATE_IN]
    assert back.target == table.states.live == read_after(cache, table, 8)
    refused = cache.open_table()
    assert cache.admit(refused, prompt(0, 9)) == BlocksMissing(0, num_states=1)
    cache.release(table)
    assert cache.admit(refused, prompt(0, 9)) == 8, "the host has kept it"
    for each in (*others, refused):
        cache.release(each)
    cache.check()


def test_a_snapshot_of_the_host_needs_its_keys_and_values() -> None:
    cache = KVCache(replace(FEW, num_blocks=9, num_host_blocks=2))
    serve(cache, prompt(0, 17))
    serve(cache, prompt(100, 30))
    assert found(cache, prompt(0, 17)) == 0
    cache.check()


def test_the_host_keeps_the_snapshots_that_were_used_last() -> None:
    cache = evicted(replace(FEW, num_host_states=2))
    serve(cache, prompt(0, 9))
    for first in range(400, 600, 100):
        serve(cache, prompt(first, 9))
        assert found(cache, prompt(0, 9)) == 8
        serve(cache, prompt(0, 9))
    assert found(cache, prompt(100, 9)) == 0
    cache.check()


def test_snapshots_that_save_little_stay_where_they_are() -> None:
    cache = KVCache(FEW)
    assert cache.states is not None
    cache.states.least_tokens = 3 * SIZE
    serve(cache, prompt(0, 9))
    serve(cache, prompt(100, 13))
    for first in range(200, 600, 100):
        serve(cache, prompt(first, 9))
    assert found(cache, prompt(0, 9)) == 0
    assert found(cache, prompt(100, 13)) == 12


def test_what_is_computed_again_begins_at_a_snapshot() -> None:
    """A request's own blocks count as lost, and so do the snapshots over them."""
    cache = KVCache(HOSTED)
    first = compute(cache, prompt(0, 13))
    second = compute(cache, prompt(0, 9) + prompt(100, 8))
    third = compute(cache, prompt(0, 9) + prompt(200, 8))
    assert cache.recompute_cost(third, 17) == RecomputeCost(3, 9, num_states=1)
    assert cache.recompute_cost(first, 13).num_tokens == 5
    cache.release(second)
    cache.release(third)
    cache.reset()
    assert cache.recompute_cost(first, 13) == RecomputeCost(4, 13, num_states=1)
