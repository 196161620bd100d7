"""The pool's own promises: all or nothing, and an error for what cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool, BlockUsage
from quire.cache.chain import Content
from quire.cache.sharing import NO_KEYS

CONTENT = Content(b"key", b"tokens", NO_KEYS, None)


def test_a_take_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.take(4) is None
    assert pool.usage == BlockUsage(free=3, cached=0, active=0)
    assert pool.take(3) is not None
    assert pool.take(1) is None


@given(st.lists(st.integers(1, 5), max_size=20), st.data())
def test_whatever_is_free_can_be_taken_at_once(sizes: list[int], data: st.DataObject) -> None:
    """In whatever order blocks came back: none is too small for any request."""
    pool = BlockPool(30)
    held = [taken for size in sizes if (taken := pool.take(size)) is not None]
    for taken in data.draw(
        st.lists(st.sampled_from(held), unique_by=tuple) if held else st.just([])
    ):
        pool.release(reversed(taken))
    num_free = pool.num_available
    taken = pool.take(num_free)
    assert taken is not None and len(set(taken)) == num_free
    assert pool.take(1) is None


def test_the_null_block_is_never_given() -> None:
    taken = BlockPool(64).take(63)
    assert taken is not None
    assert sorted(taken) == list(range(1, 64))
    assert NULL_BLOCK not in taken


def test_a_double_release_raises() -> None:
    pool = BlockPool(4)
    taken = pool.take(1)
    assert taken is not None
    pool.release(taken)
    with pytest.raises(AccountsError, match="nobody holds it"):
        pool.release(taken)


def test_a_free_block_cannot_be_shared_or_cached() -> None:
    pool = BlockPool(4)
    with pytest.raises(AccountsError, match="cannot be shared"):
        pool.share([1])
    with pytest.raises(AccountsError, match="nobody holds it"):
        pool.cache(1, b"key", CONTENT)


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(4)
    taken = pool.take(1)
    assert taken is not None
    pool.share(taken)
    pool.release(taken)
    assert pool.usage.active == 1
    pool.release(taken)
    assert pool.usage == BlockUsage(free=3, cached=0, active=0)


def test_a_cached_block_is_found_until_it_is_evicted() -> None:
    told: list[tuple[int, bytes, Content]] = []
    pool = BlockPool(3, on_evict=lambda *evicted: told.append(evicted))
    taken = pool.take(1)
    assert taken is not None
    assert pool.cache(taken[0], b"key", CONTENT)
    pool.release(taken)
    assert pool.usage == BlockUsage(free=1, cached=1, active=0)
    assert pool.find([b"key"]) == taken
    assert pool.content_under(b"key") is CONTENT
    assert pool.take(2) is not None
    assert pool.find([b"key"]) == []
    assert pool.content_under(b"key") is None
    assert told == [(taken[0], b"key", CONTENT)]


def test_forgetting_frees_what_is_evictable_and_leaves_what_is_held() -> None:
    pool = BlockPool(4)
    held, evictable = pool.take(1), pool.take(1)
    assert held is not None and evictable is not None
    pool.cache(held[0], b"held", CONTENT)
    pool.cache(evictable[0], b"evictable", CONTENT)
    pool.release(evictable)
    pool.forget()
    assert pool.usage == BlockUsage(free=2, cached=0, active=1)
    assert pool.find([b"held"]) == pool.find([b"evictable"]) == []
    pool.check({held[0]: 1})
    pool.release(held)
    assert pool.usage == BlockUsage(free=3, cached=0, active=0)


def test_check_sees_a_block_with_a_reference_nobody_has() -> None:
    pool = BlockPool(4)
    taken = pool.take(1)
    assert taken is not None
    pool.check({taken[0]: 1})
    with pytest.raises(AccountsError):
        pool.check({})
    with pytest.raises(AccountsError):
        pool.check({taken[0]: 2})
