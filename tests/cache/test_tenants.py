"""Tenants with the same prompt share what is public of it, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.cache.sharing import SharingTerms
from tests.cache.cache_machine import held_by

PROMPT = list(range(40))


@given(
    block_size=st.integers(1, 8),
    num_public=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    num_host_blocks=st.sampled_from([0, 50]),
    evicts=st.booleans(),
)
def test_two_tenants_share_no_block_unless_it_is_public(
    block_size: int, num_public: tuple[int, int], num_host_blocks: int, evicts: bool
) -> None:
    cache = KVCache(CacheConfig(101, block_size, num_host_blocks=num_host_blocks))
    first, second = (
        cache.open_table(SharingTerms(salt, public))
        for salt, public in zip((b"ann", b"bob"), num_public, strict=True)
    )
    cache.admit(first, PROMPT)
    cache.advance(first, PROMPT, len(PROMPT))
    if evicts:
        cache.release(first)
        filler = cache.open_table(SharingTerms(b"eve"))
        cache.admit(filler, [99] * 100 * block_size)
        cache.release(filler)
    found = cache.admit(second, PROMPT)
    shared = set(held_by(first)) & set(held_by(second))
    most = min(*num_public, len(PROMPT) - 1) // block_size
    if evicts and not num_host_blocks:
        assert found == 0
    else:
        assert found == most * block_size
        assert evicts or len(shared) == most
