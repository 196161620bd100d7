"""The blocks that an admitted request begins with: those of its prefix, here or on the host, and
those it was swapped out with.
"""

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

ON_HOST = -1
"""In the place of a block that is to be moved in."""


class HostHit(NamedTuple):
    """A block of the host for this place of the table. A private one has no key."""

    group: int
    place: int
    host_id: int
    key: bytes | None


class ComputedBlocks(NamedTuple):
    """What need not be computed: the first `num_tokens`, in `block_ids` by group, with AWAY for
    each of `host_hits` and the null block where no later token looks. All groups' are equally long;
    `num_cached_blocks` blocks of each were found by their keys.
    """

    num_tokens: int
    num_cached_blocks: int
    block_ids: tuple[list[int], ...]
    host_hits: list[HostHit]

    @property
    def shared(self) -> list[int]:
        """The blocks that are on the device."""
        return [
            block_id
            for ids in self.block_ids
            for block_id in ids
            if block_id not in (NULL_BLOCK, ON_HOST)
        ]


@dataclass(frozen=True, slots=True)
class BlockFinder:
    """Looks in the device's pool, and in the host's if there is one."""

    pool: BlockPool
    host: HostPool | None
    groups: tuple[AttentionPattern, ...]
    block_size: int

    def nothing(self) -> ComputedBlocks:
        return ComputedBlocks(0, 0, tuple([] for _ in self.groups), [])

    def prefix(self, chain: Chain, most: int, *, use_host: bool) -> ComputedBlocks:
        """The longest, of up to `most` blocks, that every group still has; on the host too if that
        is to be used.
        """
        if not use_host or self.host is None:
            ids = find_prefix(self.pool, self.groups, chain, most, block_size=self.block_size)
            return self._found(ids, [])
        tiers = Tiers(self.pool, self.host)
        ids = find_prefix(tiers, self.groups, chain, most, block_size=self.block_size)
        host_hits = [
            HostHit(group, index, self.host.place_of(key), key)
            for group, blocks in enumerate(ids)
            for index, block_id in enumerate(blocks)
            if block_id == ON_HOST
            for key in (group_key(chain.digests[index], group),)
        ]
        return self._found(ids, host_hits)

    def _found(self, ids: tuple[list[int], ...], host_hits: list[HostHit]) -> ComputedBlocks:
        num_blocks = len(ids[0])
        return ComputedBlocks(num_blocks * self.block_size, num_blocks, ids, host_hits)

    def swapped(self, chain: Chain, swap: Swap) -> ComputedBlocks | None:
        """All that a table was swapped out with; None if a block that it claims is lost."""
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
                host_hits.append(HostHit(group, index, self.host.place_of(key), key))
        for group, index, _, _ in host_hits:
            block_ids[group][index] = ON_HOST
        num_cached_blocks = min((index for _, index, _ in swap.private), default=num_blocks)
        return ComputedBlocks(swap.num_computed, num_cached_blocks, block_ids, host_hits)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Device and host as one pool to find blocks in."""

    pool: BlockPool
    host: HostPool

    def find(self, keys: Sequence[bytes]) -> list[int]:
        found: list[int] = []
        while len(found) < len(keys):
            found += self.pool.find(keys[len(found) :])
            if len(found) == len(keys) or self.host.find(keys[len(found)]) is None:
                break
            found.append(ON_HOST)
        return found

    def contents(self, keys: Sequence[bytes]) -> list[Content]:
        contents = [self.content_under(key) for key in keys]
        return [content for content in contents if content is not None]

    def content_under(self, key: bytes) -> Content | None:
        return self.pool.content_under(key) or self.host.content_under(key)

    def check_retained(self) -> None:
        """Raise AccountsError unless all that swapped requests claim is there."""
        if any(self.content_under(key) is None for key in self.host.retained_keys):
            raise AccountsError("a block that a swapped request claims is on no tier")
