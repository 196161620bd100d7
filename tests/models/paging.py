"""Block tables by simple arithmetic, over shuffled block ids: batches without a cache."""

import random
from collections.abc import Sequence

import torch

from quire.models.batch import Batch

Chunk = tuple[int, int, Sequence[int]]
"""A sequence's index, the position of its first token here, and the tokens."""


class Paging:
    """Every sequence owns enough shuffled blocks for `max_len` tokens; block 0 is nobody's."""

    def __init__(
        self, num_seqs: int, max_len: int, *, block_size: int, seed: int = 0, device: str = "cpu"
    ) -> None:
        per_seq = -(-max_len // block_size)
        ids = list(range(1, num_seqs * per_seq + 1))
        random.Random(seed).shuffle(ids)
        self.tables = [ids[i * per_seq : (i + 1) * per_seq] for i in range(num_seqs)]
        self.num_blocks = len(ids) + 1
        self._block_size = block_size
        self._device = device

    def slot(self, seq: int, position: int) -> int:
        block = self.tables[seq][position // self._block_size]
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
        tables = torch.zeros(len(chunks), max(used), dtype=torch.int32)
        for row, ((seq, _, _), n) in enumerate(zip(chunks, used, strict=True)):
            tables[row, :n] = torch.tensor(self.tables[seq][:n], dtype=torch.int32)
        if rows is None:
            rows = [end - 1 for end in starts[1:]]
        if slots is None:
            slots = [self.slot(seq, position) for seq, position in places]
        return Batch(
            input_ids=self._longs([token for _, _, tokens in chunks for token in tokens]),
            positions=self._longs([position for _, position in places]),
            slots=self._longs(slots),
            block_tables=tables.to(self._device),
            query_starts=tuple(starts),
            context_lens=tuple(first + len(tokens) for _, first, tokens in chunks),
            logit_rows=self._longs(rows),
        )

    def _longs(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
