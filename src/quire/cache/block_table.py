"""The blocks of one request: append-only lists of ids, one for each layer group, and the hashes of
its full blocks.
"""

from dataclasses import dataclass, field

from quire.cache.reuse import OPEN, Reuse


@dataclass(slots=True, eq=False)
class BlockTable:
    """Only the cache writes a table. The null block stands where a group needs its tokens no more:
    in the first `num_passed` places of that group.

    `num_covered` is how many blocks' places every group has. `hashes` follow the token ids alone
    and so outlive a release; `num_sealed` counts the leading blocks that have had their hash.
    """

    block_ids: tuple[list[int], ...]
    num_passed: list[int]
    reuse: Reuse = OPEN
    hashes: list[bytes] = field(default_factory=list)
    num_sealed: int = 0
    num_covered: int = 0
