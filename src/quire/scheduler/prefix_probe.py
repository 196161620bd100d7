"""Looks up a prompt in the prefix cache as an admission would, without taking, copying or touching
any block."""

from collections.abc import Sequence
from typing import NamedTuple

from quire.cache.kv_cache import KVCache
from quire.cache.prefix_miss import PrefixMiss
from quire.cache.sharing import SharingTerms
from quire.cache.states.state_pool import StateTier


class PrefixProbe(NamedTuple):
    """The leading tokens of a prompt that need not be computed: `num_cached` in all, of them
    `num_on_device` without a copy from the host. `miss` says why no more, None where no more may
    be, since the last token is always computed, or where nothing is cached at all. `state` is the
    memory where the state after them lies, None without recurrent layers or without a hit."""

    num_cached: int
    num_on_device: int
    miss: PrefixMiss | None
    state: StateTier | None = None


def probe_prefix(cache: KVCache, token_ids: Sequence[int], sharing: SharingTerms) -> PrefixProbe:
    """Return the prefix hit of a prompt under the terms of `sharing`. It takes
    as long as an admission: the hashes of the prompt's blocks."""
    table = cache.open_table(sharing)
    num_cached = cache.num_cached(table, token_ids)
    num_on_device = cache.num_cached(table, token_ids, use_host=False)
    miss = cache.explain_miss(table, token_ids, num_cached)
    state = None
    if cache.states is not None and num_cached:
        state = cache.states.tier_after(table, num_cached)
    return PrefixProbe(num_cached, num_on_device, miss, state)
