"""Steps on the null block, which the start runs before there are requests: to measure the largest
one, and to compile kernels.
"""

from dataclasses import dataclass

import torch

from quire.models.batch import Batch


@dataclass(frozen=True, slots=True)
class NullBatches:
    """Makes batches of one chunk, shaped as a runner shapes them, for a model on `device` whose KV
    cache has blocks of `block_size` tokens and layers that attend by `num_tables` block tables."""

    block_size: int
    num_tables: int
    device: torch.device

    def chunk(self, start: int, num_tokens: int) -> Batch:
        """Return a batch of `num_tokens` tokens that follow `start` others, all on the null block,
        with logits of each."""
        end = start + num_tokens
        positions = torch.arange(start, end, device=self.device)
        num_blocks = -(-end // self.block_size)
        table = torch.zeros((1, num_blocks), dtype=torch.int32, device=self.device)
        return Batch(
            input_ids=torch.zeros_like(positions),
            positions=positions,
            slots=(torch.zeros_like(positions),) * self.num_tables,
            block_tables=(table,) * self.num_tables,
            query_starts=(0, num_tokens),
            context_lens=(end,),
            logits_indices=positions - start,
        )
