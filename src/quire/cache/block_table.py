"""The blocks of one request: append-only lists of ids, one for each layer group, and the hashes of
its full blocks.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BlockTable:
    """Only the cache writes a table. `hashes` follow the token ids alone and so outlive a release;
    `num_sealed` counts the leading blocks that already carry their hash in the pool."""

    block_ids: tuple[list[int], ...]
    salt: bytes = b""
    hashes: list[bytes] = field(default_factory=list)
    num_sealed: int = 0
