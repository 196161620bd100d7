"""The blocks of one request: append-only lists of ids, one for each layer group, and the chain of
its full blocks.
"""

from dataclasses import dataclass

from quire.cache.chain import Chain
from quire.cache.reuse import Reuse


@dataclass(slots=True, eq=False)
class BlockTable:
    """Only the cache writes a table. The null block stands where a group needs its tokens no more:
    in the first `num_passed` places of that group.

    `num_covered` is how many blocks' places every group has. `num_sealed` counts the leading blocks
    that have had their hash. Blocks taken before the cache was last reset (`epoch`) are never
    sealed.
    """

    block_ids: tuple[list[int], ...]
    num_passed: list[int]
    chain: Chain
    num_sealed: int = 0
    num_covered: int = 0
    epoch: int = 0

    @property
    def reuse(self) -> Reuse:
        return self.chain.reuse
