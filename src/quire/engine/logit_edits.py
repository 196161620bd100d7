"""What a request does to its logits before temperature, in this order: bans of `min_tokens` and
`logit_bias`, then repetition, frequency and presence penalty, as in vLLM's sampler. Only the ids
concerned are gathered and changed, and a NaN among them stays one, so that a broken row is still
seen."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from quire.engine.sample_row import SampleRow, SeenTokens
from quire.models.native.sampling import Edits

_NO_PENALTIES = (1.0, 0.0, 0.0)
_NOTHING_SEEN = SeenTokens()


def find_edits(logits: Tensor, rows: Sequence[SampleRow]) -> Edits | None:
    """Of `logits` [len(rows), vocab], of any float type. None: all rows are left as they are."""
    if not any(row.has_edits for row in rows):
        return None
    touched = _Touched(logits.shape[1])
    for row in rows:
        touched.add(row)
    return touched.edits(logits)


def apply_edits(logits: Tensor, edits: Edits) -> None:
    """Put the edits in their places among `logits`, fp32."""
    logits[_rows_of(edits.starts), edits.ids] = edits.values


@dataclass(slots=True)
class _Touched:
    """The ids that rows edit, row by row: first those seen, which penalties are for, then others
    that have a ban or bias. `addends` are those, at `places` among the ids."""

    vocab_size: int
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: list[int] = field(default_factory=list)
    penalties: list[tuple[float, float, float]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    addends: list[float] = field(default_factory=list)

    def add(self, row: SampleRow) -> None:
        asked = row.sampling
        seen = row.seen() if row.asks_penalties else _NOTHING_SEEN
        first = len(self.ids)
        self.ids += seen.ids
        self.counts += seen.counts
        others: dict[int, int] = {}
        bans = [(token_id, -torch.inf) for token_id in row.banned_token_ids]
        for token_id, addend in (*bans, *asked.logit_bias):
            if 0 <= token_id < self.vocab_size:  # no other can be drawn anyway
                place = seen.place_of(token_id)
                if place is None:
                    place = others.setdefault(token_id, len(seen.ids) + len(others))
                self.places.append(first + place)
                self.addends.append(addend)
        self.ids.extend(others)
        self.counts.extend([0] * len(others))
        self.lengths += [len(seen.ids), len(others)]
        self.penalties += [
            (asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty),
            _NO_PENALTIES,
        ]

    def edits(self, logits: Tensor) -> Edits:
        device = logits.device
        ends = list(accumulate(self.lengths, initial=0))
        starts = torch.tensor(ends[::2], device=device)
        ids = _tensor(self.ids, device)
        values = logits[_rows_of(starts), ids].float()
        if self.places:
            addends = torch.tensor(self.addends, dtype=torch.float32, device=device)
            index = (torch.tensor(self.places, device=device),)
            values.index_put_(index, addends, accumulate=True)
        lengths = torch.tensor(self.lengths, device=device)
        penalties = torch.tensor(self.penalties, dtype=torch.float32, device=device)
        repetition, frequency, presence = penalties.repeat_interleave(lengths, 0).unbind(-1)
        values = torch.where(values > 0, values / repetition, values * repetition)
        counts = _tensor(self.counts, device)
        return Edits(starts, ids, values - frequency * counts - presence * (counts > 0))


def _rows_of(starts: Tensor) -> Tensor:
    """The row of each edit."""
    return torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())


def _tensor(numbers: "array[int]", device: torch.device) -> Tensor:
    if not numbers:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(numbers, dtype=torch.int64).to(device)
