"""Steps on the null block, which the start runs before there are requests: to measure the largest
one, and to compile kernels.
"""

from dataclasses import dataclass

import torch

from quire.cache.states.state_use import NULL_STATE
from quire.models.batch import Batch
from quire.models.recurrent.pieces import Pieces


@dataclass(frozen=True, slots=True)
class NullBatches:
    """Makes batches of one chunk, shaped as a runner shapes them, for a model on `device` whose KV
    cache has blocks of `block_size` tokens, and whose layers attend by `num_tables` block tables.
    Where it `has_states`, the first state after the null state is written."""

    block_size: int
    num_tables: int
    device: torch.device
    has_states: bool = False

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
            pieces=self._pieces(num_tokens) if self.has_states else None,
        )

    def _pieces(self, num_tokens: int) -> Pieces:
        values = ([0, num_tokens], [NULL_STATE], [NULL_STATE + 1], [0, 1])
        return Pieces(*(torch.tensor(v, dtype=torch.int32, device=self.device) for v in values))
