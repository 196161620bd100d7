"""What one layer keeps for a token, and so how many bytes a block costs."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """K and V of every token: `num_kv_heads` heads of `k_width` and `v_width` elements."""

    num_kv_heads: int
    k_width: int
    v_width: int
    element_bytes: int

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block of one layer."""
        return block_size * self.num_kv_heads * (self.k_width + self.v_width) * self.element_bytes


def bytes_per_block(specs: Sequence[FullAttentionSpec], block_size: int) -> int:
    """Bytes of one block id over all layers."""
    return sum(spec.page_bytes(block_size) for spec in specs)
