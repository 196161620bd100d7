"""The log of cached and evicted blocks, for the reasons of prefix misses and for observers of the
cache."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from quire.cache.block_hash import group_of, ids_of
from quire.cache.chain import Chain, Content
from quire.cache.config import CacheConfig
from quire.cache.kv_events import KVEvent, KVEventKind, Medium
from quire.cache.prefix_miss import PrefixMiss, PrefixMisses


class PrefixLog:
    """Notes the blocks that enter and leave the prefix cache. Events are collected until they are
    taken, and only if the configuration asks for them. `on_cached` is called with the content and
    group of each block that can be found from now on."""

    def __init__(self, config: CacheConfig) -> None:
        self._root = config.block_hash.root
        self._misses = PrefixMisses(config.num_blocks, config.block_size)
        self._keeps_events = config.enable_kv_cache_events
        self._events: list[KVEvent] = []
        self.on_cached: Callable[[Content, int], None] | None = None

    def cached(self, chain: Chain, group: int, indices: Sequence[int]) -> None:
        """Note that these blocks of the chain, in order, can be found from now on."""
        if group == 0:
            for index in indices:
                self._misses.cached(chain.content(index), chain.parent_digest(index))
        if self.on_cached is not None:
            for index in indices:
                self.on_cached(chain.content(index), group)
        if self._keeps_events:
            self._events += _stored(chain, group, indices)

    def evicted(self, key: bytes, content: Content) -> None:
        """Note that the device has this block no more."""
        group = group_of(key, content.digest)
        if group == 0:
            parent = content.parent
            self._misses.evicted(content, self._root if parent is None else parent.digest)
        if self._keeps_events:
            self._events.append(KVEvent(KVEventKind.REMOVED, (content.digest,), group=group))

    def kept_by_host(self, key: bytes, content: Content) -> None:
        """Note that an evicted block can be found on the host from now on."""
        if self._keeps_events:
            self._events.append(_stored_on_host(key, content))

    def gone_from_host(self, key: bytes, content: Content) -> None:
        """Note that the host has this block no more."""
        if self._keeps_events:
            group = group_of(key, content.digest)
            self._events.append(
                KVEvent(KVEventKind.REMOVED, (content.digest,), group=group, medium=Medium.HOST)
            )

    def cleared(self) -> None:
        """Note that nothing is found any more."""
        self._misses.clear()
        if self._keeps_events:
            self._events.append(KVEvent(KVEventKind.CLEARED))

    def take_events(self) -> tuple[KVEvent, ...]:
        """Return the events since they were last taken."""
        events, self._events = tuple(self._events), []
        return events

    def explain_miss(self, chain: Chain, num_tokens: int, num_found: int) -> PrefixMiss | None:
        """Return why no more than `num_found` of `num_tokens` tokens were found, as
        `PrefixMisses.explain` does.
        """
        return self._misses.explain(chain, num_tokens, num_found)


def _stored(chain: Chain, group: int, indices: Sequence[int]) -> Iterator[KVEvent]:
    """Yield one event for each run of consecutive blocks."""
    for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
        blocks = [index for _, index in run]
        first, end = blocks[0], blocks[-1] + 1
        yield KVEvent(
            KVEventKind.STORED,
            tuple(chain.digests[first:end]),
            chain.digests[first - 1] if first else None,
            tuple(token for index in blocks for token in ids_of(chain.tokens(index))),
            group,
            adapter=chain.sharing.adapter,
        )


def _stored_on_host(key: bytes, content: Content) -> KVEvent:
    return KVEvent(
        KVEventKind.STORED,
        (content.digest,),
        None if content.parent is None else content.parent.digest,
        tuple(ids_of(content.tokens)),
        group_of(key, content.digest),
        Medium.HOST,
        content.extra.adapter,
    )
