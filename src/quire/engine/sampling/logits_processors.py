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

from quire.engine.sampling.sampling_state import SamplingState, SeenTokens
from quire.models.native.sampling.sampling import Edits

_NO_PENALTIES = (1.0, 0.0, 0.0)
_NOTHING_SEEN = SeenTokens()


class ProcessorParams(NamedTuple):
    """The ids that some rows edit, all in one row. A row has two stretches of `lengths`, each with
    its three `penalties`: the ids seen, with `counts`, and others. `addends` are for the ids at
    `places`."""

    lengths: Tensor
    penalties: Tensor
    ids: Tensor
    counts: Tensor
    places: Tensor
    addends: Tensor


class ProcessedLogits(NamedTuple):
    """Logits to take instead, fp32, each with its row and id."""

    rows: Tensor
    ids: Tensor
    values: Tensor


class Found(NamedTuple):
    """`starts` says where each row's ids start, and the last end. None: nothing is edited."""

    starts: list[int]
    processors: ProcessorParams | None


def collect_params(rows: Sequence[SamplingState], vocab_size: int) -> Found:
    """What `rows` edit, on the host."""
    if not any(row.has_logits_processors for row in rows):
        return Found([], None)
    collected = _ParamsBuilder(vocab_size)
    for row in rows:
        collected.add(row)
    starts = list(accumulate(collected.lengths, initial=0))[::2]
    return Found(starts, collected.processors())


def process(logits: Tensor, index: Tensor, processors: ProcessorParams) -> ProcessedLogits:
    """Of `logits` [any, vocab_size], of any float type, row `index[i]` is that of row i."""
    stretches = torch.repeat_interleave(processors.lengths, output_size=len(processors.ids))
    rows = stretches // 2
    values = logits[index[rows], processors.ids].float()
    values.index_add_(0, processors.places, processors.addends)
    repetition, frequency, presence = processors.penalties.view(-1, 3)[stretches].unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    counts = processors.counts
    return ProcessedLogits(
        rows, processors.ids, values - frequency * counts - presence * (counts > 0)
    )


def process_on_cpu(logits: Tensor, rows: Sequence[SamplingState]) -> Edits | None:
    """Of `logits` [len(rows), vocab_size] on the CPU, of any float type. None: all rows are left
    as they are."""
    starts, processors = collect_params(rows, logits.shape[1])
    if processors is None:
        return None
    edited = process(logits, torch.arange(len(rows)), processors)
    return Edits(torch.tensor(starts), edited.ids, edited.values)


@dataclass(slots=True)
class _ParamsBuilder:
    """What becomes `ProcessorParams`: of each row first the ids seen, which penalties are for,
    then others that have a ban or bias."""

    vocab_size: int
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: list[int] = field(default_factory=list)
    penalties: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    addends: list[float] = field(default_factory=list)

    def add(self, row: SamplingState) -> None:
        params = row.sampling
        seen = row.seen() if row.has_penalties else _NOTHING_SEEN
        first = len(self.ids)
        self.ids += seen.ids
        self.counts += seen.counts
        others: dict[int, int] = {}
        bans = [(token_id, -torch.inf) for token_id in row.banned_token_ids]
        for token_id, addend in (*bans, *params.logit_bias):
            if 0 <= token_id < self.vocab_size:  # no other can be sampled anyway
                place = seen.index_of(token_id)
                if place is None:
                    place = others.setdefault(token_id, len(seen.ids) + len(others))
                self.places.append(first + place)
                self.addends.append(addend)
        self.ids.extend(others)
        self.counts.extend([0] * len(others))
        self.lengths += [len(seen.ids), len(others)]
        self.penalties += (
            *(params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
            *_NO_PENALTIES,
        )

    def processors(self) -> ProcessorParams:
        return ProcessorParams(
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
