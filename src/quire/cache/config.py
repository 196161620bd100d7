"""What a KV cache is built from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """`num_blocks` counts the null block, so `num_blocks - 1` can be used."""

    num_blocks: int
    block_size: int
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size is {self.block_size}, must be 1 or more")
        if self.num_blocks < 2:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, must be 2 or more: block 0 is the null block"
            )
