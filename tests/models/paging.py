"""Block tables and states by simple arithmetic, over shuffled ids: batches without a cache."""

import random
from collections.abc import Sequence
from copy import copy
from itertools import product
from typing import Self

import torch

from quire.cache.layout import BlockTableForm
from quire.cache.states.state_use import NULL_STATE
from quire.models.batch import Batch
from quire.models.recurrent.pieces import Pieces

Chunk = tuple[int, int, Sequence[int]]
"""A sequence's index, the position of its first token here, and the tokens."""


class Paging:
    """Every sequence owns enough shuffled blocks for `max_len` tokens in each layer group; block 0
    is nobody's. `tables[group][seq]` are its ids; layers attend by the `tables` of a layout. Each
    sequence owns two states: the last, and one that each chunk of several tokens leaves behind its
    first half, as for a snapshot."""

    def __init__(
        self,
        num_seqs: int,
        max_len: int,
        *,
        block_size: int,
        seed: int = 0,
        tables: Sequence[BlockTableForm] = (BlockTableForm(0),),
    ) -> None:
        num_groups = len({table.group for table in tables})
        per_seq = -(-max_len // block_size)
        ids = list(range(1, num_groups * num_seqs * per_seq + 1))
        random.Random(seed).shuffle(ids)
        parts = [ids[first : first + per_seq] for first in range(0, len(ids), per_seq)]
        self.tables = [parts[g * num_seqs : (g + 1) * num_seqs] for g in range(num_groups)]
        self.num_blocks = len(ids) + 1
        self._forms = tuple(tables)
        state_ids = random.Random(seed).sample(range(1, 2 * num_seqs + 1), 2 * num_seqs)
        self.states = list(zip(state_ids[::2], state_ids[1::2], strict=True))
        self.num_states = len(state_ids) + 1
        self._block_size = block_size
        self._device = "cpu"

    def on(self, device: str) -> Self:
        """Return the same tables, whose batches are on `device`."""
        moved = copy(self)
        moved._device = device
        return moved

    def slot(self, seq: int, position: int, table: int = 0) -> int:
        group, num_parts, part = self._forms[table]
        block = self.tables[group][seq][position // self._block_size] * num_parts + part
        return block * self._block_size + position % self._block_size

    def batch(
        self,
        chunks: Sequence[Chunk],
        *,
        rows: Sequence[int] | None = None,
        slots: Sequence[int] | None = None,
    ) -> Batch:
        """One step of `chunks`. By default every chunk's last token wants logits."""
        starts = [0]
        for _, _, tokens in chunks:
            starts.append(starts[-1] + len(tokens))
        places = [(seq, first + k) for seq, first, toks in chunks for k in range(len(toks))]
        used = [-(-(first + len(toks)) // self._block_size) for _, first, toks in chunks]
        tables = torch.zeros(len(self._forms), len(chunks), max(used), dtype=torch.int32)
        for (index, form), row in product(enumerate(self._forms), range(len(chunks))):
            ids = self.tables[form.group][chunks[row][0]][: used[row]]
            blocks = [block * form.num_parts + form.part for block in ids]
            tables[index, row, : len(ids)] = torch.tensor(blocks, dtype=torch.int32)
        if rows is None:
            rows = [end - 1 for end in starts[1:]]
        return Batch(
            input_ids=self._longs([token for _, _, tokens in chunks for token in tokens]),
            positions=self._longs([position for _, position in places]),
            slots=tuple(
                self._longs(slots or [self.slot(seq, position, table) for seq, position in places])
                for table in range(len(self._forms))
            ),
            block_tables=tuple(tables.to(self._device)),
            query_starts=tuple(starts),
            context_lens=tuple(first + len(tokens) for _, first, tokens in chunks),
            logits_indices=self._longs(rows),
            pieces=self._pieces(chunks),
        )

    def _pieces(self, chunks: Sequence[Chunk]) -> Pieces:
        starts, reads, writes, sequences = [0], [], [], [0]
        for seq, first, tokens in chunks:
            last, snapshot = self.states[seq]
            half = len(tokens) // 2
            cuts = [(half, snapshot)] if half else []
            read = last if first else NULL_STATE
            for size, write in (*cuts, (len(tokens) - half, last)):
                starts.append(starts[-1] + size)
                reads.append(read)
                writes.append(write)
                read = write
            sequences.append(len(reads))
        return Pieces(*map(self._ints, (starts, reads, writes, sequences)))

    def _ints(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)

    def _longs(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
