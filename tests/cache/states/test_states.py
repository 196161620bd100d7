"""States of recurrent layers: what is found, what is evicted, and what a refused admission leaves.

The invariants of `tests/engine` run them in random company; these are the decisions one by one.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.admission import BlocksMissing
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.cache.spec import FULL
from quire.cache.states.policy import PLANNED, SnapshotPolicy
from quire.cache.states.state_use import NULL_STATE

SIZE = 4
ENDS = SnapshotPolicy(ladder=0)
CONFIG = CacheConfig(64, SIZE, groups=(FULL,), num_states=8, snapshots=ENDS)


def prompt(first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def compute(cache: KVCache, tokens: list[int]) -> BlockTable:
    """Admit a request and compute all of it in one chunk."""
    table = cache.open_table()
    admitted = cache.admit(table, tokens)
    assert isinstance(admitted, int)
    cache.plan_states(table, admitted, len(tokens))
    cache.advance(table, tokens, len(tokens))
    return table


def serve(cache: KVCache, tokens: list[int]) -> None:
    cache.release(compute(cache, tokens))
    cache.check()


def found(cache: KVCache, tokens: list[int]) -> int:
    return cache.num_cached(cache.open_table(), tokens)


def test_a_chunk_leaves_the_state_of_the_last_border_and_goes_on() -> None:
    cache = KVCache(CONFIG)
    table = cache.open_table()
    assert cache.admit(table, prompt(0, 10)) == 0
    use = cache.plan_states(table, 0, 10)
    assert use is not None and use.read == NULL_STATE
    assert [write.end for write in use.writes] == [8, 10]
    assert len({write.state_id for write in use.writes}) == 2
    following = cache.plan_states(table, 10, 11)
    assert following is not None
    assert following.read == use.writes[-1].state_id == following.writes[0].state_id


def test_an_equal_prompt_goes_on_before_its_last_token_and_a_longer_one_after_it() -> None:
    cache = KVCache(CONFIG)
    serve(cache, prompt(0, 8))
    assert found(cache, prompt(0, 8)) == 4
    assert found(cache, prompt(0, 9)) == 8


def test_where_prompts_part_there_is_a_snapshot_from_the_second_on() -> None:
    cache = KVCache(CONFIG)
    serve(cache, prompt(0, 9) + prompt(100, 8))
    second = prompt(0, 9) + prompt(200, 8)
    table = cache.open_table()
    assert cache.admit(table, second) == 0
    assert cache.explain_miss(table, second, 0) == PrefixMiss(MissKind.STATE, 8)
    use = cache.plan_states(table, 0, 17)
    assert use is not None and [write.end for write in use.writes] == [8, 16, 17]
    cache.advance(table, second, 17)
    cache.release(table)
    assert found(cache, prompt(0, 9) + prompt(300, 8)) == 8


def test_an_output_has_one_snapshot_its_last() -> None:
    cache = KVCache(CONFIG)
    tokens = prompt(0, 6)
    table = compute(cache, tokens)
    for end in range(7, 22):
        tokens.append(end)
        assert cache.grow(table, end - 1, end) is not None
        cache.plan_states(table, end - 1, end)
        cache.advance(table, tokens, end)
    cache.release(table)
    cache.check()
    assert found(cache, [*tokens, 0]) == 20
    assert found(cache, tokens[:18]) == 4
    assert cache.state_usage == (5, 2, 0)


def test_a_snapshot_without_its_keys_and_values_is_not_found_and_goes_first() -> None:
    cache = KVCache(replace(CONFIG, num_blocks=6, num_states=4))
    serve(cache, prompt(0, 17))
    assert found(cache, prompt(0, 18)) == 16
    serve(cache, prompt(100, 18))  # takes the blocks of the first
    assert found(cache, prompt(0, 18)) == 0
    serve(cache, prompt(200, 9))
    assert found(cache, prompt(200, 10)) == 8


def test_a_snapshot_that_saves_much_outlives_a_newer_one_that_saves_little() -> None:
    for weight, kept in ((1.0, True), (0.0, False)):
        policy = replace(ENDS, outputs=False, gain_weight=weight)
        cache = KVCache(replace(CONFIG, num_states=5, snapshots=policy))
        serve(cache, prompt(0, 41))
        serve(cache, prompt(100, 5))
        serve(cache, prompt(200, 5))
        serve(cache, prompt(300, 5))
        serve(cache, prompt(400, 5))
        assert (found(cache, prompt(0, 42)) == 40) is kept


def test_a_prompt_with_another_end_goes_on_from_a_rung_of_the_ladder() -> None:
    cache = KVCache(replace(CONFIG, snapshots=replace(ENDS, ladder=16)))
    serve(cache, prompt(0, 41))
    found_after = {num: found(cache, prompt(0, num) + prompt(100, 30)) for num in range(20, 42)}
    assert found_after[41] == 40 and found_after[39] == 36 and found_after[35] == 32
    assert found_after[31] == found_after[24] == 24 and found_after[23] == 0


def test_before_any_prompt_goes_on_ends_of_prompts_outlive_their_ladders() -> None:
    policy = replace(ENDS, ladder=16, outputs=False)
    cache = KVCache(replace(CONFIG, num_blocks=100, num_states=8, snapshots=policy))
    firsts = range(100, 900, 100)
    for first in firsts:
        serve(cache, prompt(first, 41))
    found_now = [found(cache, [*prompt(first, 41), 0]) for first in firsts[-4:]]
    assert found_now.count(40) >= 3, found_now


def test_an_output_keeps_its_last_snapshot_where_every_state_is_taken() -> None:
    cache = KVCache(replace(CONFIG, num_states=5))
    for first in range(100, 500, 100):
        serve(cache, prompt(first, 9))
    tokens = prompt(0, 9)
    table = compute(cache, tokens)
    for end in range(10, 40):
        tokens.append(end)
        assert cache.grow(table, end - 1, end) is not None
        cache.plan_states(table, end - 1, end)
        cache.advance(table, tokens, end)
    cache.release(table)
    cache.check()
    assert found(cache, [*tokens, 0]) == 36


def turns(cache: KVCache, num: int, *, keeps_output: bool) -> float:
    """Take conversations of two turns through a cache, several at once; return the share of the
    second prompts that is found in the end."""
    num_found = num_tokens = 0
    histories: list[list[int]] = []
    for number in range(num):
        histories.append(prompt(1000 * number + 1, 21))
        if len(histories) == 3:
            first = histories.pop(0)
            if number >= num // 2:
                num_found += found(cache, [*first, 0])
                num_tokens += len(first)
            serve(cache, [*first, 0])
        tokens = histories[-1]
        table, said = compute(cache, tokens), prompt(1000 * number + 500, 13)
        assert cache.grow(table, 21, 34) is not None
        cache.plan_states(table, 21, 34)
        cache.advance(table, tokens + said, 34)
        cache.release(table)
        cache.check()
        histories[-1] = tokens + said if keeps_output else tokens
    return num_found / num_tokens


@pytest.mark.parametrize("keeps_output", [False, True])
def test_the_snapshots_that_conversations_go_on_from_are_learned(keeps_output: bool) -> None:
    cache = KVCache(replace(CONFIG, num_blocks=200, num_states=7, snapshots=PLANNED))
    assert turns(cache, 60, keeps_output=keeps_output) > 0.9


def test_where_the_tail_of_a_prompt_was_evicted_no_snapshot_is_taken() -> None:
    cache = KVCache(replace(CONFIG, num_blocks=14))
    serve(cache, prompt(0, 33))
    serve(cache, prompt(100, 32))  # takes the last blocks of the first
    table = cache.open_table()
    miss = cache.explain_miss(table, prompt(0, 33), 0)
    assert miss is not None and miss.kind is MissKind.STATE and 0 < miss.number < 32
    assert cache.admit(table, prompt(0, 33)) == 0
    use = cache.plan_states(table, 0, 33)
    assert use is not None and [write.end for write in use.writes] == [32, 33]


def test_an_admission_without_a_state_changes_nothing() -> None:
    cache = KVCache(replace(CONFIG, num_states=3))
    first, second = compute(cache, prompt(0, 3)), compute(cache, prompt(10, 3))
    before = cache.usage
    table = cache.open_table()
    assert cache.admit(table, prompt(20, 9)) == BlocksMissing(0, num_states=1)
    assert cache.usage == before and cache.state_usage == (0, 0, 2)
    cache.release(first)
    assert cache.admit(table, prompt(20, 9)) == 0
    use = cache.plan_states(table, 0, 9)
    assert use is not None
    assert [write.end for write in use.writes] == [9], "no state is left for a snapshot"
    cache.release(second)
    cache.release(table)
    cache.check()


def test_a_pinned_prefix_keeps_its_snapshot() -> None:
    cache = KVCache(replace(CONFIG, num_states=4, snapshots=replace(ENDS, outputs=False)))
    serve(cache, prompt(0, 8))
    assert cache.pins.pin("a", cache.open_table(), prompt(0, 8), max_blocks=9) == 2
    for first in range(100, 1000, 100):
        serve(cache, prompt(first, 9))
    assert found(cache, prompt(0, 9)) == 8
    cache.pins.unpin("a")
    cache.check()
    assert cache.state_usage.active == 0


def test_a_prefix_without_a_snapshot_at_its_end_is_not_pinned() -> None:
    cache = KVCache(CONFIG)
    serve(cache, prompt(0, 12))
    assert cache.pins.pin("a", cache.open_table(), prompt(0, 4), max_blocks=9) is None


def test_a_reset_forgets_snapshots_and_those_under_way() -> None:
    cache = KVCache(CONFIG)
    serve(cache, prompt(0, 9))
    tokens = prompt(50, 9)
    table = cache.open_table()
    cache.admit(table, tokens)
    cache.plan_states(table, 0, 9)
    cache.reset()
    cache.advance(table, tokens, 9)
    assert found(cache, prompt(0, 9)) == found(cache, tokens) == 0
    cache.release(table)
    cache.check()
    assert cache.state_usage == (7, 0, 0)


def test_a_model_without_attention_goes_on_from_snapshots_alone() -> None:
    cache = KVCache(CacheConfig(1, SIZE, groups=(), num_states=8, snapshots=ENDS))
    serve(cache, prompt(0, 9) + prompt(100, 8))
    other = prompt(0, 9) + prompt(200, 8)
    table = cache.open_table()
    assert cache.admit(table, other) == 0
    assert cache.explain_miss(table, other, 0) == PrefixMiss(MissKind.STATE, 8)
    cache.plan_states(table, 0, 17)
    cache.advance(table, other, 17)
    cache.release(table)
    assert found(cache, prompt(0, 9) + prompt(300, 8)) == 8


@given(
    st.integers(1, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(1, 20),
    st.integers(0, 70),
)
def test_wanted_places_are_borders_behind_what_is_found(
    num_tokens: int, num_found: int, num_kv_found: int, size: int, interval: int
) -> None:
    policy = replace(PLANNED, interval=interval)
    num_found = min(num_found, num_tokens - 1) // size * size
    wanted = policy.wanted(num_tokens, num_found, num_kv_found, block_size=size)
    places = [place.end for place in wanted]
    assert places == sorted(set(places))
    assert all(num_found < place <= num_tokens and not place % size for place in places)
    last = (num_tokens - 1) // size * size
    assert last <= num_found or last in places


@pytest.mark.parametrize("num_states", [-1, 1])
def test_a_cache_has_no_states_or_more_than_the_null_state(num_states: int) -> None:
    with pytest.raises(ValueError, match=f"num_states is {num_states}, must be 2 or more"):
        replace(CONFIG, num_states=num_states)
