"""Why no more was found: each reason with its number, by the interface of the cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import MissKind, PrefixMiss
from quire.cache.sharing import OPEN, PromptItem, SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType

SIZE = 4


def build(num_blocks: int = 64) -> KVCache:
    return KVCache(CacheConfig(num_blocks, SIZE))


def compute(cache: KVCache, tokens: list[int], sharing: SharingTerms = OPEN) -> BlockTable:
    table = cache.open_table(sharing)
    assert isinstance(cache.admit(table, tokens), int)
    cache.advance(table, tokens, len(tokens))
    return table


def miss(cache: KVCache, tokens: list[int], sharing: SharingTerms = OPEN) -> PrefixMiss | None:
    table = cache.open_table(sharing)
    num_found = cache.admit(table, tokens)
    assert isinstance(num_found, int)
    return cache.explain_miss(table, tokens, num_found)


def test_a_prompt_without_a_full_block_before_its_last_token_is_too_short() -> None:
    cache = build()
    assert miss(cache, [1]) == (MissKind.TOO_SHORT, 1)
    assert miss(cache, [1, 2, 3, 4]) == (MissKind.TOO_SHORT, 4)
    assert miss(cache, [1, 2, 3, 4, 5]) == (MissKind.NEW, 0)


def test_all_that_can_be_shared_is_no_miss() -> None:
    cache = build()
    compute(cache, list(range(8)))
    assert miss(cache, list(range(8))) is None
    assert miss(cache, [*range(8), 9]) is None


@given(
    st.lists(st.integers(0, 3), min_size=9, max_size=24),
    st.lists(st.integers(0, 3), min_size=9, max_size=24),
)
def test_the_first_differing_token_is_named(cached: list[int], asked: list[int]) -> None:
    cache = build()
    compute(cache, cached)
    num_full = len(cached) // SIZE * SIZE
    differing = [at for at, (one, two) in enumerate(zip(cached, asked, strict=False)) if one != two]
    first = min([*differing, num_full])
    found = miss(cache, asked)
    if first // SIZE * SIZE >= (len(asked) - 1) // SIZE * SIZE:
        assert found is None
    elif first == num_full or first == 0:
        assert found == (MissKind.NEW, first)
    else:
        assert found == (MissKind.DIFFERS, first)


def test_of_many_continuations_the_nearest_counts() -> None:
    cache = build()
    for tail in ([9, 9, 9, 9], [5, 6, 9, 9], [5, 9, 9, 9]):
        compute(cache, [1, 2, 3, 4, *tail])
    assert miss(cache, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == (MissKind.DIFFERS, 6)


def test_of_very_many_continuations_the_newest_are_compared() -> None:
    """What an answer costs is bounded."""
    cache = build(num_blocks=400)
    for tail in ([5, 6, 9, 9], *([5, 9, 9, number] for number in range(100, 164))):
        compute(cache, [1, 2, 3, 4, *tail])
    assert miss(cache, [1, 2, 3, 4, 5, 6, 7, 8, 0]) == (MissKind.DIFFERS, 5)


def test_what_was_evicted_is_said_until_it_is_cached_again() -> None:
    cache = build(num_blocks=4)
    first, other = [*range(8), 0], [*range(20, 28), 0]
    cache.release(compute(cache, first))
    cache.release(compute(cache, other))
    table = cache.open_table()
    assert cache.admit(table, first) == 0
    assert cache.explain_miss(table, first, 0) == (MissKind.EVICTED, 0)
    cache.advance(table, first, len(first))
    cache.release(table)
    assert miss(cache, first) is None


def test_a_window_that_lost_its_block_is_an_eviction() -> None:
    config = CacheConfig(24, 2, True, (FULL, AttentionPattern(AttentionType.SLIDING, 4)), 8)
    cache = KVCache(config)

    def run(tokens: list[int]) -> PrefixMiss | None:
        table = cache.open_table()
        num_found = cache.admit(table, tokens)
        assert isinstance(num_found, int)
        found = cache.explain_miss(table, tokens, num_found)
        for start in range(num_found, len(tokens), 8):
            end = min(start + 8, len(tokens))
            assert cache.grow(table, start, end) is not None
            cache.advance(table, tokens, end)
        cache.release(table)
        return found

    run(list(range(20)))
    run(list(range(50, 64)))
    found = run([*range(20), 99])
    assert found is not None and found.kind is MissKind.EVICTED


@pytest.mark.parametrize(
    ("cached", "asked"),
    [
        (SharingTerms(b"a"), SharingTerms(b"b")),
        (SharingTerms(b"a"), OPEN),
        (OPEN, SharingTerms(b"a")),
        (OPEN, SharingTerms(adapter="a")),
        (SharingTerms(adapter="b"), SharingTerms(adapter="a")),
    ],
)
def test_what_is_cached_for_others_is_said(cached: SharingTerms, asked: SharingTerms) -> None:
    cache = build()
    compute(cache, list(range(8)), cached)
    assert miss(cache, [*range(8), 9], asked) == (MissKind.SALT, 0)


def test_a_salt_that_enters_later_is_said_where_it_does() -> None:
    cache = build()
    compute(cache, list(range(12)), SharingTerms(b"a", 5))
    assert miss(cache, list(range(12)), SharingTerms(b"b", 5)) == (MissKind.SALT, 4)


def test_another_image_differs_where_it_begins() -> None:
    cache = build()
    tokens = [1, 2, 3, 4, 5, 7, 7, 7, 7]
    compute(cache, tokens, SharingTerms(items=(PromptItem(b"cat", 5, 8),)))
    other = SharingTerms(items=(PromptItem(b"dog", 5, 8),))
    assert miss(cache, tokens, other) == (MissKind.DIFFERS, 5)


def test_nothing_is_remembered_over_a_reset() -> None:
    cache = build()
    tokens = [*range(8), 0]
    cache.release(compute(cache, tokens))
    cache.reset()
    assert miss(cache, tokens) == (MissKind.NEW, 0)


def test_without_prefix_caching_nothing_is_missed() -> None:
    cache = KVCache(CacheConfig(8, SIZE, enable_prefix_caching=False))
    assert miss(cache, list(range(9))) is None
