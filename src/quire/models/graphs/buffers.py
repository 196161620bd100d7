"""The tensors that captured decode steps read: they stay where they are, and each step fills them
anew."""

from dataclasses import dataclass

import torch

from quire.cache.states.state_use import NULL_STATE
from quire.models.attention.triton.inputs import StepBounds, StepInputs
from quire.models.batch import Batch
from quire.models.recurrent.pieces import Pieces

NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """`max_num_blocks` are those of one request, in each of `num_tables` block tables."""

    max_num_seqs: int
    max_model_len: int
    max_num_blocks: int
    num_tables: int


class Buffers:
    """The input tensors of decode steps of up to `max_num_seqs` requests.

    A smaller step uses the first rows of each.
    """

    def __init__(self, limits: DecodeLimits, device: torch.device) -> None:
        size = limits.max_num_seqs
        self._limits = limits
        self._counts = torch.arange(size + 1, dtype=torch.int32, device=device)
        self.input_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(size, dtype=torch.int64, device=device)
        self.query_starts = torch.zeros_like(self._counts)
        self.context_lens = torch.ones(size, dtype=torch.int32, device=device)
        rows = (limits.num_tables, size)
        self.slots = torch.full(rows, NO_SLOT, dtype=torch.int64, device=device)
        tables = (*rows, limits.max_num_blocks)
        self.block_tables = torch.zeros(tables, dtype=torch.int32, device=device)
        self.logits_indices = torch.arange(size, device=device)
        self.state_reads = torch.full_like(self.context_lens, NULL_STATE)
        self.state_writes = torch.full_like(self.context_lens, NULL_STATE)

    def inputs(self, size: int) -> StepInputs:
        return StepInputs(
            self.query_starts[: size + 1],
            self.context_lens[:size],
            tuple(table[:size] for table in self.block_tables),
            tuple(slots[:size] for slots in self.slots),
            StepBounds(
                max_context=self._limits.max_model_len,
                has_singles=True,
                has_longer=False,
                longest_chunk=1,
            ),
        )

    def pieces(self, size: int) -> Pieces:
        """Return a piece for each request: those of padding read and write the null state."""
        places = self._counts[: size + 1]
        return Pieces(places, self.state_reads[:size], self.state_writes[:size], places)

    def fill(self, batch: Batch, size: int) -> None:
        """Copy in a step of at most `size` requests of one token each, on the device.

        The rows beyond them compute nothing that is kept.
        """
        count = len(batch.context_lens)
        self.input_ids[:count].copy_(batch.input_ids)
        self.positions[:count].copy_(batch.positions)
        torch.clamp(self._counts[: size + 1], max=count, out=self.query_starts[: size + 1])
        torch.add(batch.positions, 1, out=self.context_lens[:count])
        self.input_ids[count:size].zero_()
        self.positions[count:size].zero_()
        for index, (slots, table) in enumerate(zip(batch.slots, batch.block_tables, strict=True)):
            self.slots[index, :count].copy_(slots)
            self.slots[index, count:size].fill_(NO_SLOT)
            self.block_tables[index, :count, : table.shape[1]].copy_(table)
        if batch.pieces is not None:
            self._fill_states(batch.pieces, size)

    def _fill_states(self, pieces: Pieces, size: int) -> None:
        count = len(pieces.writes)
        for buffer, ids in ((self.state_reads, pieces.reads), (self.state_writes, pieces.writes)):
            buffer[:count].copy_(ids)
            buffer[count:size].fill_(NULL_STATE)
