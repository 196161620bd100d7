"""The configuration of a KV cache."""

from dataclasses import dataclass

from quire.cache.block_hash import BlockHash
from quire.cache.spec import FULL, AttentionPattern
from quire.cache.states.policy import PLANNED, SnapshotPolicy


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """A KV cache is built from these. Raises ValueError for sizes that make no sense.

    - num_blocks: blocks of the pool, the null block included, so that `num_blocks - 1` can be used.
    - block_size: tokens in a block.
    - groups: the attention pattern of each layer group; empty for a model without attention.
    - max_chunk_tokens: the most tokens of a request that a step computes. It bounds the blocks that
      a group with a window or chunks holds.
    - num_host_blocks: blocks of host memory for what is swapped out or evicted.
    - block_hash: the hash of full blocks. It may collide; the default has a fixed root.
    - enable_kv_cache_events: whether what is cached and evicted is collected as events.
    - num_states: states of recurrent layers, the null state among them; 0 without such layers.
    - snapshots: where a request leaves snapshots of its states.
    - num_host_states: states of host memory for what is swapped out or evicted.
    """

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool = True
    groups: tuple[AttentionPattern, ...] = (FULL,)
    max_chunk_tokens: int = 1 << 30
    num_host_blocks: int = 0
    block_hash: BlockHash = BlockHash()
    enable_kv_cache_events: bool = False
    num_states: int = 0
    snapshots: SnapshotPolicy = PLANNED
    num_host_states: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}, must be 1 or more")
        if self.max_chunk_tokens < 1:
            raise ValueError(f"max_chunk_tokens is {self.max_chunk_tokens}, must be 1 or more")
        if self.num_states == 1 or self.num_states < 0:
            raise ValueError(
                f"num_states is {self.num_states}, must be 2 or more: state 0 is the null state"
            )
        least = 2 if self.groups else 1
        if self.num_blocks < least:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, must be {least} or more: block 0 is the null "
                "block"
            )
