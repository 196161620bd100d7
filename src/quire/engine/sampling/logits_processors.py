"""The logits processors of requests, which change logits before temperature.

In this order, as in vLLM's sampler: bans of `min_tokens` and `logit_bias`, then repetition,
frequency and presence penalty. Only the ids concerned are gathered and changed, and a NaN among
them stays one, so that a row that is not finite is still found.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.sampling_state import SamplingState, SeenTokens
from quire.models.native.sampling.sampling import LogitEdits

_NO_PENALTIES = (1.0, 0.0, 0.0)
_NOTHING_SEEN = SeenTokens()


class ProcessorParams(NamedTuple):
    """The token ids whose logits some rows change, those of all rows one after another.

    Each row has two segments: the ids among its tokens, and other ids with a ban or bias.
    lengths: int64 [2 * rows], the number of ids in each segment.
    penalties: float32 [2 * rows * 3], the repetition, frequency and presence penalty of each.
    ids, counts: int64 [ids], the token ids, and how often each is among the outputs.
    addend_indices, addends: the indices into `ids` that a ban or bias concerns, and what it adds.
    """

    lengths: Tensor
    penalties: Tensor
    ids: Tensor
    counts: Tensor
    addend_indices: Tensor
    addends: Tensor


class ProcessedLogits(NamedTuple):
    """Processed logits: fp32 `values` [ids] that replace those at `rows` and `ids`, int64 [ids]."""

    rows: Tensor
    ids: Tensor
    values: Tensor


class CollectedParams(NamedTuple):
    """The parameters of some rows, or None if no row has a processor. `starts` are the indices
    where each row's ids start, and the end of the last."""

    starts: list[int]
    processors: ProcessorParams | None


def collect_params(rows: Sequence[SamplingState], vocab_size: int) -> CollectedParams:
    """Return the parameters of the logits processors of `rows`, on the host."""
    if not any(row.has_logits_processors for row in rows):
        return CollectedParams([], None)
    collected = _ParamsBuilder(vocab_size)
    for row in rows:
        collected.add(row)
    starts = list(accumulate(collected.lengths, initial=0))[::2]
    return CollectedParams(starts, collected.processors())


def process(logits: Tensor, index: Tensor, processors: ProcessorParams) -> ProcessedLogits:
    """Return the processed logits of rows. `logits` are [any, vocab_size], of any float type;
    `logits[index[i]]` belong to row i of `processors`."""
    segments = torch.repeat_interleave(processors.lengths, output_size=len(processors.ids))
    rows = segments // 2
    values = logits[index[rows], processors.ids].float()
    values.index_add_(0, processors.addend_indices, processors.addends)
    repetition, frequency, presence = processors.penalties.view(-1, 3)[segments].unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    counts = processors.counts
    return ProcessedLogits(
        rows, processors.ids, values - frequency * counts - presence * (counts > 0)
    )


def process_on_cpu(logits: Tensor, rows: Sequence[SamplingState]) -> LogitEdits | None:
    """Return what the C++ sampler takes for `rows`, or None if no row has a processor. `logits` are
    [len(rows), vocab_size] on the CPU, of any float type."""
    starts, processors = collect_params(rows, logits.shape[1])
    if processors is None:
        return None
    edited = process(logits, torch.arange(len(rows)), processors)
    return LogitEdits(torch.tensor(starts), edited.ids, edited.values)


@dataclass(slots=True)
class _ParamsBuilder:
    """Builds `ProcessorParams` row by row: first the ids of the row's tokens, which penalties are
    for, then other ids that have a ban or bias."""

    vocab_size: int
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: list[int] = field(default_factory=list)
    penalties: list[float] = field(default_factory=list)
    addend_indices: list[int] = field(default_factory=list)
    addends: list[float] = field(default_factory=list)

    def add(self, row: SamplingState) -> None:
        """Append the ids that a row's processors change."""
        params = row.sampling
        seen = row.seen() if row.has_penalties else _NOTHING_SEEN
        first = len(self.ids)
        self.ids += seen.ids
        self.counts += seen.counts
        others: dict[int, int] = {}
        bans = [(token_id, -torch.inf) for token_id in row.banned_token_ids]
        for token_id, addend in (*bans, *params.logit_bias):
            if 0 <= token_id < self.vocab_size:  # other ids have no logit
                index = seen.index_of(token_id)
                if index is None:
                    index = others.setdefault(token_id, len(seen.ids) + len(others))
                self.addend_indices.append(first + index)
                self.addends.append(addend)
        self.ids.extend(others)
        self.counts.extend([0] * len(others))
        self.lengths += [len(seen.ids), len(others)]
        self.penalties += (
            *(params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
            *_NO_PENALTIES,
        )

    def processors(self) -> ProcessorParams:
        """Return the parameters of all rows that were added."""
        return ProcessorParams(
            torch.tensor(self.lengths),
            torch.tensor(self.penalties, dtype=torch.float32),
            _tensor(self.ids),
            _tensor(self.counts),
            torch.tensor(self.addend_indices, dtype=torch.int64),
            torch.tensor(self.addends, dtype=torch.float32),
        )


def _tensor(numbers: "array[int]") -> Tensor:
    if not numbers:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(numbers, dtype=torch.int64)
