"""Pinned prefixes by example: what is pinned stays, and nothing else does."""

import pytest

from quire.cache.admission import BlocksMissing
from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from quire.cache.spec import FULL, AttentionPattern, AttentionType
from tests.cache.cache_machine import take_all

PREFIX = [1, 2, 3, 4, 5, 6, 7, 8]
WINDOW = AttentionPattern(AttentionType.SLIDING, 3)


def build(num_blocks: int = 20, groups: tuple[AttentionPattern, ...] = (FULL,)) -> KVCache:
    return KVCache(CacheConfig(num_blocks, 2, groups=groups))


def computed(cache: KVCache, tokens: list[int], salt: bytes = b"") -> BlockTable:
    table = cache.open_table(SharingTerms(salt))
    assert not isinstance(cache.admit(table, tokens), BlocksMissing)
    cache.advance(table, tokens, len(tokens))
    return table


def pin(
    cache: KVCache, name: str, tokens: list[int], max_blocks: int = 99, salt: bytes = b""
) -> int | BlocksMissing | None:
    """Compute a prefix as a request does, and pin it before that one's blocks go."""
    table = computed(cache, tokens, salt)
    pinned = cache.pins.pin(name, table, tokens, max_blocks=max_blocks)
    cache.release(table)
    cache.check()
    return pinned


def found(cache: KVCache, tokens: list[int], salt: bytes = b"") -> int:
    return cache.num_cached(cache.open_table(SharingTerms(salt)), [*tokens, 0])


def test_what_is_pinned_outlives_all_that_is_taken() -> None:
    cache = build()
    assert pin(cache, "a", PREFIX) == 4
    cache.release(computed(cache, [9, 9, 9, 9]))
    assert cache.usage == (13, 2, 0, 4)
    take_all(cache, 1, 2)
    assert (found(cache, PREFIX), found(cache, [9, 9, 9, 9])) == (8, 0)
    assert cache.usage == (15, 0, 0, 4)


def test_a_pinned_block_that_a_request_holds_counts_as_pinned() -> None:
    cache = build()
    pin(cache, "a", PREFIX)
    table = computed(cache, [*PREFIX, 0])
    assert cache.usage == (14, 0, 1, 4)
    cache.release(table)
    assert cache.usage == (15, 0, 0, 4)


def test_what_is_unpinned_is_evicted_like_all_else() -> None:
    cache = build()
    pin(cache, "a", PREFIX)
    cache.pins.unpin("a")
    cache.pins.unpin("a")
    assert cache.usage == (15, 4, 0, 0) and found(cache, PREFIX) == 8
    take_all(cache, 1, 2)
    assert found(cache, PREFIX) == 0


def test_blocks_of_two_pins_count_once_and_stay_for_the_other() -> None:
    cache = build()
    assert pin(cache, "a", PREFIX) == 4
    table = cache.open_table()
    assert cache.pins.num_new(table, [*PREFIX[:6], 9, 9]) == 1
    assert pin(cache, "b", [*PREFIX[:6], 9, 9]) == 4
    assert cache.usage.pinned == 5
    cache.pins.unpin("a")
    take_all(cache, 1, 2)
    cache.check()
    assert cache.usage.pinned == 4
    assert (found(cache, PREFIX), found(cache, [*PREFIX[:6], 9, 9])) == (6, 8)


def test_no_more_is_pinned_than_may_be() -> None:
    cache = build()
    assert pin(cache, "a", PREFIX, max_blocks=5) == 4
    assert pin(cache, "b", [7] * 4, max_blocks=5) == BlocksMissing(1)
    assert pin(cache, "b", [7] * 2, max_blocks=5) == 1
    assert cache.usage.pinned == 5


def test_a_name_pins_one_prefix() -> None:
    cache = build()
    pin(cache, "a", PREFIX)
    assert pin(cache, "a", [7] * 4) == 2
    assert cache.usage.pinned == 2


def test_what_was_not_computed_cannot_be_pinned() -> None:
    cache = build()
    table = computed(cache, PREFIX[:5])
    assert cache.pins.pin("a", table, PREFIX, max_blocks=99) is None
    assert cache.usage.pinned == 0
    cache.release(table)


def test_without_prefix_caching_nothing_can_be_pinned() -> None:
    window = AttentionPattern(AttentionType.SLIDING, 1)
    cache = KVCache(CacheConfig(20, 2, enable_prefix_caching=False, groups=(window,)))
    assert pin(cache, "a", PREFIX) is None


@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)])
def test_after_a_reset_nothing_is_pinned(groups: tuple[AttentionPattern, ...]) -> None:
    cache = build(groups=groups)
    pin(cache, "a", PREFIX)
    table = computed(cache, [*PREFIX, 0])
    cache.reset()
    cache.check()
    assert cache.usage.pinned == 0 and found(cache, PREFIX) == 0
    assert cache.pins.pin("a", table, PREFIX, max_blocks=99) is None, "computed before the reset"
    cache.release(table)
    assert cache.usage == (19, 0, 0, 0)


def test_a_window_needs_its_last_blocks_alone() -> None:
    cache = build(groups=(FULL, WINDOW))
    assert pin(cache, "a", PREFIX) == 4 + 1
    take_all(cache, 2, 2)
    assert found(cache, PREFIX) == 8
    assert found(cache, PREFIX[:6]) == 0, "what the window would need of less is not pinned"
