"""The first blocks of an admitted request: its cached prefix, on the device or the host, and the
blocks it was swapped out with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.cache.block_hash import group_key
from quire.cache.block_pool import NULL_BLOCK, AccountsError, BlockPool
from quire.cache.block_table import Swap
from quire.cache.chain import Chain, Content
from quire.cache.host_pool import HostPool
from quire.cache.prefix import find_prefix
from quire.cache.spec import AttentionPattern
from quire.cache.states.state_cache import StateCache
from quire.cache.states.state_pool import FoundState, StateTier

ON_HOST = -1
"""Stands in a table for a block that is still to be copied in from the host."""


class BlocksMissing(NamedTuple):
    """The number of missing blocks, or of states of recurrent layers, if an admission fails."""

    num_blocks: int
    num_states: int = 0


class HostHit(NamedTuple):
    """A block of the host whose contents belong at `block_index` of group `group`'s
    table. A private block of a swapped request has no key.
    """

    group: int
    block_index: int
    host_id: int
    key: bytes | None


class ComputedBlocks(NamedTuple):
    """The blocks of the first `num_tokens` tokens, which need not be computed again.

    `block_ids` has one list for each group, all equally long: ON_HOST stands for each of
    `host_hits`, the null block where no later token looks. The first `num_cached_blocks` of each
    group were found by their keys. Models with recurrent layers go on from `state`, although K and
    V of `num_kv_tokens` were found.
    """

    num_tokens: int
    num_cached_blocks: int
    block_ids: tuple[list[int], ...]
    host_hits: list[HostHit]
    state: FoundState | None = None
    num_kv_tokens: int = 0

    @property
    def num_host_hits(self) -> int:
        """The number of blocks of the first group that were found on the host by their keys."""
        return sum(1 for hit in self.host_hits if hit.group == 0 and hit.key is not None)

    @property
    def shared(self) -> list[int]:
        """The blocks that lie on the device, over all groups."""
        return [
            block_id
            for ids in self.block_ids
            for block_id in ids
            if block_id not in (NULL_BLOCK, ON_HOST)
        ]


@dataclass(frozen=True, slots=True)
class BlockFinder:
    """Finds computed blocks in the device's pool, and in the host's if there is one."""

    pool: BlockPool
    host: HostPool | None
    groups: tuple[AttentionPattern, ...]
    block_size: int

    def nothing(self) -> ComputedBlocks:
        """Return the admission of a request without a prefix hit."""
        return ComputedBlocks(0, 0, tuple([] for _ in self.groups), [])

    def prefix(self, chain: Chain, max_blocks: int, *, use_host: bool) -> ComputedBlocks:
        """Return the longest cached prefix of `chain` that every group still has, `max_blocks`
        blocks at most. The host's blocks count if `use_host` is true. Without groups, nothing is
        missing.
        """
        if not self.groups:
            return ComputedBlocks(max_blocks * self.block_size, max_blocks, (), [])
        if not use_host or self.host is None:
            ids = find_prefix(self.pool, self.groups, chain, max_blocks, block_size=self.block_size)
            return self._found(ids, [])
        tiers = Tiers(self.pool, self.host)
        ids = find_prefix(tiers, self.groups, chain, max_blocks, block_size=self.block_size)
        host_hits = [
            HostHit(group, index, self.host.block_of(key), key)
            for group, blocks in enumerate(ids)
            for index, block_id in enumerate(blocks)
            if block_id == ON_HOST
            for key in (group_key(chain.digests[index], group),)
        ]
        return self._found(ids, host_hits)

    def prefix_with_state(
        self, states: StateCache, chain: Chain, max_blocks: int, *, use_host: bool
    ) -> ComputedBlocks:
        """Return the longest prefix after which the K and V and a snapshot of `states` are found;
        `num_kv_tokens` is that of K and V alone."""
        found = self.prefix(chain, max_blocks, use_host=use_host)
        num_kv_tokens = found.num_tokens
        if not self.groups:
            num_kv_tokens = states.num_seen(chain, max_blocks) * self.block_size
        while state := states.find(chain, found.num_cached_blocks, use_host=use_host):
            if state.num_blocks == found.num_cached_blocks:
                return found._replace(state=state, num_kv_tokens=num_kv_tokens)
            found = self.prefix(chain, state.num_blocks, use_host=use_host)
        return self.nothing()._replace(num_kv_tokens=num_kv_tokens)

    def _found(self, ids: tuple[list[int], ...], host_hits: list[HostHit]) -> ComputedBlocks:
        num_blocks = len(ids[0])
        return ComputedBlocks(num_blocks * self.block_size, num_blocks, ids, host_hits)

    def swapped(self, chain: Chain, swap: Swap) -> ComputedBlocks | None:
        """Return all that a table was swapped out with, or None if a block that it retains is
        lost.
        """
        if self.host is None:
            return None
        tiers = Tiers(self.pool, self.host)
        num_blocks = -(-swap.num_computed // self.block_size)
        block_ids = tuple([NULL_BLOCK] * num_blocks for _ in self.groups)
        host_hits = [HostHit(*private, None) for private in swap.private]
        for group, index, key in swap.retained:
            content = tiers.content_under(key)
            if content is None or not chain.matches(content, index):
                return None
            (block_ids[group][index],) = tiers.find([key])
            if block_ids[group][index] == ON_HOST:
                host_hits.append(HostHit(group, index, self.host.block_of(key), key))
        for group, index, _, _ in host_hits:
            block_ids[group][index] = ON_HOST
        num_full = swap.num_computed // self.block_size
        num_cached_blocks = min((index for _, index, _ in swap.private), default=num_full)
        found = ComputedBlocks(swap.num_computed, num_cached_blocks, block_ids, host_hits)
        if swap.state_id is None:
            return found
        return found._replace(state=FoundState(swap.state_id, num_full, StateTier.SWAPPED))


@dataclass(frozen=True, slots=True)
class Tiers:
    """Device and host as one pool in which blocks are found by their keys."""

    pool: BlockPool
    host: HostPool

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks of the leading keys, ON_HOST for those that only the host has, up to
        the first key that is on no tier.
        """
        found: list[int] = []
        while len(found) < len(keys):
            found += self.pool.find(keys[len(found) :])
            if len(found) == len(keys) or self.host.find(keys[len(found)]) is None:
                break
            found.append(ON_HOST)
        return found

    def contents(self, keys: Sequence[bytes]) -> list[Content]:
        """Return the contents of the blocks under `keys`, which must be cached."""
        contents = [self.content_under(key) for key in keys]
        return [content for content in contents if content is not None]

    def content_under(self, key: bytes) -> Content | None:
        """Return the content of the block under `key`, or None if no tier has it."""
        return self.pool.content_under(key) or self.host.content_under(key)

    def check_retained(self) -> None:
        """Raise AccountsError unless all that swapped requests retain is there."""
        if any(self.content_under(key) is None for key in self.host.retained_keys):
            raise AccountsError("a block that a swapped request retains is on no tier")
