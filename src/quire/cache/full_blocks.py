"""Full blocks enter the prefix cache: from then on other requests may find and share them."""

from quire.cache.block_hash import group_key
from quire.cache.block_pool import BlockPool
from quire.cache.block_table import BlockTable
from quire.cache.chain import Chain
from quire.cache.prefix_log import PrefixLog


def cache_full_blocks(table: BlockTable, num_full: int, pool: BlockPool, log: PrefixLog) -> None:
    """Make the first `num_full` blocks of `table` findable; its chain must have them already.

    Where another block is found under the same key and has the same content, the table's block
    becomes its duplicate.
    """
    for group, block_ids in enumerate(table.block_ids):
        first = max(table.num_cached_blocks, table.num_passed[group])
        cached = [
            index
            for index in range(first, num_full)
            if _cache_block(pool, table.chain, group, index, block_ids[index])
        ]
        log.cached(table.chain, group, cached)
    table.num_cached_blocks = num_full


def _cache_block(pool: BlockPool, chain: Chain, group: int, index: int, block_id: int) -> bool:
    """Return whether the block is the first to be found under its key."""
    key = group_key(chain.digests[index], group)
    if pool.cache(block_id, key, chain.content(index)):
        return True
    content = pool.content_under(key)
    if content is not None and chain.matches(content, index):
        pool.add_duplicate(block_id, key)
    return False
