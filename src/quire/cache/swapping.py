"""A table's blocks to the host; what a request loses when it gives them up; what a fork needs.

Blocks that can be found are not copied: they stay on the device for as long as nobody needs the
memory, and are copied when they are evicted. Only the others are copied at once: mostly the last
one of a request, and all of them where the cache was reset since they were computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quire.cache.block_copies import BlockCopy, CopyKind
from quire.cache.block_pool import NULL_BLOCK, BlockPool
from quire.cache.block_table import BlockTable, Swap
from quire.cache.host_pool import HostPool
from quire.cache.spec import AttentionPattern


class RecomputeCost(NamedTuple):
    """All that a request alone holds: blocks, states of recurrent layers, and the tokens that would
    be computed again without them.
    """

    num_blocks: int
    num_tokens: int
    num_states: int = 0


def recompute_cost_of(
    table: BlockTable, pool: BlockPool, num_computed: int, block_size: int
) -> RecomputeCost:
    """Return the recompute cost of a table with `num_computed` tokens. The leading blocks that
    others hold too are safe."""
    num_full = -(-num_computed // block_size)
    num_own, num_safe = 0, num_full
    for ids in table.block_ids:
        own = [
            index
            for index, block_id in enumerate(ids[:num_full])
            if block_id == NULL_BLOCK or pool.num_holders(block_id) == 1
        ]
        num_own += sum(1 for index in own if ids[index] != NULL_BLOCK)
        num_safe = min([num_safe, *own[:1]])
    return RecomputeCost(num_own, max(num_computed - num_safe * block_size, 0))


def swap_out(
    table: BlockTable, pool: BlockPool, host: HostPool, num_computed: int, block_size: int
) -> list[BlockCopy] | None:
    """Retain and copy the blocks that the table needs to continue after `num_computed` tokens.
    Return the copies for it, or None if the host has too few blocks. The table still holds its
    blocks."""
    retained: list[tuple[int, int, bytes]] = []
    places: list[tuple[int, int]] = []
    num_full = num_computed // block_size
    for group, ids in enumerate(table.block_ids):
        for index, block_id in enumerate(ids[: -(-num_computed // block_size)]):
            if block_id == NULL_BLOCK:
                continue
            key = pool.key_of(block_id)
            if key is None or index >= num_full:
                places.append((group, index))
            else:
                retained.append((group, index, key))
    host_ids = host.retain([key for _, _, key in retained], len(places), table.payer)
    if host_ids is None:
        return None
    private = [
        (group, index, host_id) for (group, index), host_id in zip(places, host_ids, strict=True)
    ]
    table.swap = Swap(num_computed, table.epoch, tuple(retained), tuple(private))
    return [
        BlockCopy(CopyKind.OUT, table.block_ids[group][index], host_id)
        for group, index, host_id in private
    ]


def has_visible(
    table: BlockTable, groups: Sequence[AttentionPattern], num_tokens: int, block_size: int
) -> bool:
    """Return whether `table` still has all that a token behind the first `num_tokens` can see."""
    num_blocks = -(-num_tokens // block_size)
    for group, ids in zip(groups, table.block_ids, strict=True):
        first = group.first_needed(num_tokens) // block_size
        if len(ids) < num_blocks or NULL_BLOCK in ids[first:num_blocks]:
            return False
    return True
