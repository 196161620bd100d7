"""What a request does to its logits before temperature, in this order: bans of `min_tokens` and
`logit_bias`, then repetition, frequency and presence penalty, as in vLLM's sampler. Only the ids
concerned are gathered and changed, and a NaN among them stays one, so that a broken row is still
seen."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.sample_row import SampleRow, SeenTokens
from quire.models.native.sampling.sampling import Edits

_NO_PENALTIES = (1.0, 0.0, 0.0)
_NOTHING_SEEN = SeenTokens()


class Touched(NamedTuple):
    """The ids that some rows edit, all in one row. A row has two stretches of `lengths`, each with
    its three `penalties`: the ids seen, with `counts`, and others. `addends` are for the ids at
    `places`."""

    lengths: Tensor
    penalties: Tensor
    ids: Tensor
    counts: Tensor
    places: Tensor
    addends: Tensor


class Edited(NamedTuple):
    """Logits to take instead, fp32, each with its row and id."""

    rows: Tensor
    ids: Tensor
    values: Tensor


class Found(NamedTuple):
    """`starts` says where each row's ids start, and the last end. None: nothing is edited."""

    starts: list[int]
    touched: Touched | None


def find_touched(rows: Sequence[SampleRow], vocab_size: int) -> Found:
    """What `rows` edit, on the host."""
    if not any(row.has_edits for row in rows):
        return Found([], None)
    collected = _Collected(vocab_size)
    for row in rows:
        collected.add(row)
    starts = list(accumulate(collected.lengths, initial=0))[::2]
    return Found(starts, collected.touched())


def edit(logits: Tensor, index: Tensor, touched: Touched) -> Edited:
    """Of `logits` [any, vocab_size], of any float type, row `index[i]` is that of row i."""
    stretches = torch.repeat_interleave(touched.lengths, output_size=len(touched.ids))
    rows = stretches // 2
    values = logits[index[rows], touched.ids].float()
    values.index_add_(0, touched.places, touched.addends)
    repetition, frequency, presence = touched.penalties.view(-1, 3)[stretches].unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    counts = touched.counts
    return Edited(rows, touched.ids, values - frequency * counts - presence * (counts > 0))


def find_edits(logits: Tensor, rows: Sequence[SampleRow]) -> Edits | None:
    """Of `logits` [len(rows), vocab_size] on the CPU, of any float type. None: all rows are left
    as they are."""
    starts, touched = find_touched(rows, logits.shape[1])
    if touched is None:
        return None
    edited = edit(logits, torch.arange(len(rows)), touched)
    return Edits(torch.tensor(starts), edited.ids, edited.values)


@dataclass(slots=True)
class _Collected:
    """What becomes `Touched`: of each row first the ids seen, which penalties are for, then others
    that have a ban or bias."""

    vocab_size: int
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: list[int] = field(default_factory=list)
    penalties: list[float] = field(default_factory=list)
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
        self.penalties += (
            *(asked.repetition_penalty, asked.frequency_penalty, asked.presence_penalty),
            *_NO_PENALTIES,
        )

    def touched(self) -> Touched:
        return Touched(
            torch.tensor(self.lengths),
            torch.tensor(self.penalties, dtype=torch.float32),
            _tensor(self.ids),
            _tensor(self.counts),
            torch.tensor(self.places, dtype=torch.int64),
            torch.tensor(self.addends, dtype=torch.float32),
        )


def _tensor(numbers: "array[int]") -> Tensor:
    if not numbers:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(numbers, dtype=torch.int64)
