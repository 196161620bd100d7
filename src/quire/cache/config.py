"""What a KV cache is built from."""

from dataclasses import dataclass

from quire.cache.block_hash import BlockHash
from quire.cache.spec import FULL, AttentionPattern


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """`num_blocks` counts the null block, so `num_blocks - 1` can be used. `groups` says how long
    each layer group needs its tokens; there are none for a model without attention.

    `num_host_blocks` of the host's memory take what is swapped out or evicted.

    No step computes more than `max_chunk_tokens` of a request: what bounds a window's blocks.
    `block_hash` may collide; its default has a fixed root. `enable_kv_cache_events` collects what
    is sealed and evicted, for someone to take.
    """

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool = True
    groups: tuple[AttentionPattern, ...] = (FULL,)
    max_chunk_tokens: int = 1 << 30
    num_host_blocks: int = 0
    block_hash: BlockHash = BlockHash()
    enable_kv_cache_events: bool = False

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}, must be 1 or more")
        if self.max_chunk_tokens < 1:
            raise ValueError(f"max_chunk_tokens is {self.max_chunk_tokens}, must be 1 or more")
        least = 2 if self.groups else 1
        if self.num_blocks < least:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, must be {least} or more: block 0 is the null "
                "block"
            )
