"""A store's help for a chain with states: what is promised is found once it is there, and nothing
else is asked for.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_hash import STATE_GROUP, group_key
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from quire.cache.transfers import BlockPosition, Transfers

BLOCK_SIZE = 2
NUM_BLOCKS = 9
TOKENS = tuple(range(BLOCK_SIZE * NUM_BLOCKS + 1))
WINDOW = AttentionPattern(AttentionType.SLIDING, 5)
GROUPS: tuple[tuple[AttentionPattern, ...], ...] = ((FULL,), (FULL, WINDOW), (WINDOW,), ())


def needed(groups: Sequence[AttentionPattern], num_blocks: int) -> set[tuple[int, int]]:
    """The index and group of all that the first token after so many blocks sees, and the state."""
    found = {(num_blocks - 1, STATE_GROUP)}
    for group, pattern in enumerate(groups):
        first = pattern.first_needed(num_blocks * BLOCK_SIZE) // BLOCK_SIZE
        found |= {(index, group) for index in range(first, num_blocks)}
    return found


def longest(groups: Sequence[AttentionPattern], there: set[tuple[int, int]]) -> int:
    """How many blocks are found, by trying each number."""
    lengths = range(NUM_BLOCKS, 0, -1)
    return next((length for length in lengths if needed(groups, length) <= there), 0)


def check(groups: tuple[AttentionPattern, ...], seed: int) -> None:
    chance = random.Random(seed)
    cache = KVCache(CacheConfig(64, BLOCK_SIZE, groups=groups, num_states=2 * NUM_BLOCKS))
    table = cache.open_table()
    table.chain.extend(TOKENS)
    every = [
        (index, group)
        for index in range(NUM_BLOCKS)
        for group in (*range(len(groups)), STATE_GROUP)
    ]
    often, seldom = chance.random(), chance.random()
    here = {place for place in every if chance.random() < often}
    stored = {place for place in every if chance.random() < 1 - seldom / 3}

    def positions(places: Sequence[tuple[int, int]]) -> list[BlockPosition]:
        digests = table.chain.digests
        return [BlockPosition(at, group, group_key(digests[at], group)) for at, group in places]

    cache.transfers.take_in(table.chain, positions(sorted(here)))
    keys = {place.key for place in positions(list(stored))}
    found = cache.transfers.find(table.chain, NUM_BLOCKS, keys.__contains__)
    assert found.num_here == longest(groups, here)
    assert found.num_blocks == longest(groups, here | stored)
    missing = [place[:2] for place in found.missing]
    if found.num_blocks > found.num_here:
        assert {*missing} == needed(groups, found.num_blocks) - here
        assert STATE_GROUP not in [group for _, group in missing[1:]]
    else:
        assert not missing
    for place in found.missing:
        assert cache.num_cached(table, TOKENS) == BLOCK_SIZE * longest(groups, here)
        assert len(cache.transfers.take_in(table.chain, [place])) == 1
        here.add(place[:2])
    assert cache.num_cached(table, TOKENS) == BLOCK_SIZE * found.num_blocks
    cache.check()


@given(st.sampled_from(GROUPS), st.integers(0, 1 << 30))
def test_what_is_promised_is_found_once_it_is_there(
    groups: tuple[AttentionPattern, ...], seed: int
) -> None:
    check(groups, seed)


@pytest.mark.parametrize("groups", GROUPS)
def test_a_promise_without_a_state_is_seen(
    groups: tuple[AttentionPattern, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfers, "_border", lambda transfers, chain, most, is_stored: most)
    with pytest.raises(AssertionError):
        for seed in range(50):
            check(groups, seed)


def test_one_state_is_left_for_the_request_itself() -> None:
    """Running requests have their states; a load takes none of them."""
    cache = KVCache(CacheConfig(64, BLOCK_SIZE, num_states=4))
    runs, asks = cache.open_table(), cache.open_table()
    assert cache.admit(runs, TOKENS[::-1]) == 0
    asks.chain.extend(TOKENS)
    key = group_key(asks.chain.digests[0], STATE_GROUP)
    place = BlockPosition(0, STATE_GROUP, key)
    assert cache.transfers.num_loadable_states == 1
    other = cache.open_table()
    assert cache.admit(other, TOKENS[1:]) == 0
    assert cache.transfers.num_loadable_states == 0
    assert cache.transfers.take_in(asks.chain, [place]) == []
    cache.release(other)
    assert len(cache.transfers.take_in(asks.chain, [place])) == 1
    assert cache.transfers.is_here(place)
    cache.check()


@pytest.mark.parametrize("num_states", [3, 4, 5])
def test_loads_leave_a_state_for_a_request_whatever_is_pinned(num_states: int) -> None:
    cache = KVCache(CacheConfig(64, BLOCK_SIZE, num_states=num_states))
    prompts = [tuple(range(start, start + BLOCK_SIZE)) for start in range(0, 50, 10)]
    for prompt in prompts:
        table = cache.open_table()
        table.chain.extend(prompt)
        (digest,) = table.chain.digests
        places = [BlockPosition(0, STATE_GROUP, group_key(digest, STATE_GROUP))]
        places.append(BlockPosition(0, 0, digest))
        assert len(cache.transfers.take_in(table.chain, places)) == 2
    pinned = [
        cache.pins.pin(str(prompt), cache.open_table(), prompt, max_blocks=9) for prompt in prompts
    ]
    assert pinned.count(1) == num_states - 2
    for prompt in prompts:
        table = cache.open_table()
        assert isinstance(cache.admit(table, (*prompt, 5)), int)
        cache.release(table)
        cache.check()
