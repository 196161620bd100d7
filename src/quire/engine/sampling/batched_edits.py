"""The edits of all rows of a step, applied together: what processors add, penalties, and masks.

Only the ids concerned are gathered and changed, and a NaN among them stays one, so that a row that
is not finite is still found.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.logits_processor import Penalties, RowEdits
from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.sampling.seen_tokens import SeenTokens
from quire.models.native.sampling.sampling import LogitEdits, TokenMasks

_NO_PENALTIES = Penalties(SeenTokens(), 1.0, 0.0, 0.0)
_WORD_BITS = 32


class EditTensors(NamedTuple):
    """The token ids with changed logits, of all rows one after another, and masks.

    Each row has two segments: the ids among its tokens, and other ids with a ban or bias.
    lengths: int64 [2 * rows], the number of ids in each segment.
    penalties: float32 [2 * rows * 3], the repetition, frequency and presence penalty of each.
    ids, counts: int64 [ids], the token ids, and how often each is among the outputs.
    addend_indices, addends: the indices into `ids` that a ban or bias concerns, and what it adds.
    masked_rows: int64 [masked rows], the indices of the rows that have a mask, rising.
    masks: int32 [masked rows, words], the tokens that these rows may sample.
    """

    lengths: Tensor
    penalties: Tensor
    ids: Tensor
    counts: Tensor
    addend_indices: Tensor
    addends: Tensor
    masked_rows: Tensor
    masks: Tensor


class EditedLogits(NamedTuple):
    """Edited logits: fp32 `values` [ids] that replace those at `rows` and `ids`, int64 [ids]."""

    rows: Tensor
    ids: Tensor
    values: Tensor


class BatchedEdits(NamedTuple):
    """The edits of some rows, on the host.

    starts: the indices where each row's ids start, and the end of the last.
    masked: the indices of the rows that have a mask, rising.
    tensors: what is copied to the device.
    """

    starts: list[int]
    masked: list[int]
    tensors: EditTensors


def batch_edits(rows: Sequence[SamplingState], vocab_size: int) -> BatchedEdits | None:
    """Return the edits of the processors of `rows`, or None if no row has a processor."""
    if not any(row.processors for row in rows):
        return None
    batch = _EditBatch()
    for row in rows:
        batch.add(row.edits(vocab_size))
    return batch.batched()


def edit(logits: Tensor, index: Tensor, tensors: EditTensors) -> EditedLogits:
    """Return the edited logits of rows, without masks. `logits` are [any, vocab_size], of any float
    type; `logits[index[i]]` belong to row i of the edits."""
    segments = torch.repeat_interleave(tensors.lengths, output_size=len(tensors.ids))
    rows = segments // 2
    values = logits[index[rows], tensors.ids].float()
    values.index_add_(0, tensors.addend_indices, tensors.addends)
    repetition, frequency, presence = tensors.penalties.view(-1, 3)[segments].unbind(-1)
    values = torch.where(values > 0, values / repetition, values * repetition)
    counts = tensors.counts
    return EditedLogits(rows, tensors.ids, values - frequency * counts - presence * (counts > 0))


def mask_addends(masks: Tensor, vocab_size: int) -> Tensor:
    """Return float32 [rows, vocab_size] of 0 where the mask allows a token and -inf elsewhere, to
    be added: a NaN stays one."""
    bits = torch.arange(_WORD_BITS, dtype=torch.int32, device=masks.device)
    banned = ((masks[:, :, None] >> bits) & 1).flatten(1)[:, :vocab_size] == 0
    zeros = torch.zeros((), device=masks.device)
    return torch.where(banned, -torch.inf, zeros)


@dataclass(frozen=True, slots=True)
class OrderedEdits:
    """The edits of all rows in the order of sampling: where they start, their tensors on the
    device, and the edited logits."""

    batched: BatchedEdits
    tensors: EditTensors
    edited: EditedLogits

    def apply(self, loaded: Tensor, first: int) -> None:
        """Edit and mask rows from `first` on in `loaded` [rows, vocab_size]."""
        starts, masked = self.batched.starts, self.batched.masked
        end = first + len(loaded)
        some = slice(starts[first], starts[end])
        rows, ids, values = (each[some] for each in self.edited)
        loaded.index_put_((rows - first, ids), values)
        start, stop = bisect_left(masked, first), bisect_left(masked, end)
        if start < stop:
            masks = mask_addends(self.tensors.masks[start:stop], loaded.shape[1])
            loaded.index_add_(0, self.tensors.masked_rows[start:stop] - first, masks)


def edits_in_order(
    logits: Tensor, order: Tensor, batched: BatchedEdits | None, tensors: EditTensors | None
) -> OrderedEdits | None:
    """Return the edits, if there are any, of the rows of `logits` in `order`."""
    if batched is None or tensors is None:
        return None
    return OrderedEdits(batched, tensors, edit(logits, order, tensors))


def edits_on_cpu(
    logits: Tensor, rows: Sequence[SamplingState]
) -> tuple[LogitEdits | None, TokenMasks | None]:
    """Return the arguments of the C++ sampler for `rows`: None for edits that no row has. `logits`
    are [len(rows), vocab_size] on the CPU, of any float type."""
    batched = batch_edits(rows, logits.shape[1])
    if batched is None:
        return None, None
    edits = masks = None
    if len(batched.tensors.ids):
        edited = edit(logits, torch.arange(len(rows)), batched.tensors)
        edits = LogitEdits(torch.tensor(batched.starts), edited.ids, edited.values)
    if batched.masked:
        masks = TokenMasks(batched.tensors.masked_rows, batched.tensors.masks)
    return edits, masks


@dataclass(slots=True)
class _EditBatch:
    """Builds `BatchedEdits` row by row: first the ids of the row's tokens, which penalties are for,
    then other ids that have a ban or bias."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: list[int] = field(default_factory=list)
    penalties: list[float] = field(default_factory=list)
    addend_indices: list[int] = field(default_factory=list)
    addends: list[float] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)

    def add(self, edits: RowEdits) -> None:
        """Append the edits of a row."""
        penalties = edits.penalties or _NO_PENALTIES
        seen = penalties.seen
        first = len(self.ids)
        self.ids += seen.ids
        self.counts += seen.counts
        others: dict[int, int] = {}
        for token_id, addend in edits.addends:
            index = seen.index_of(token_id)
            if index is None:
                index = others.setdefault(token_id, len(seen.ids) + len(others))
            self.addend_indices.append(first + index)
            self.addends.append(addend)
        self.ids.extend(others)
        self.counts.extend([0] * len(others))
        mask = edits.final_mask
        if mask is not None:
            self.masked.append(len(self.lengths) // 2)
            self.masks.append(mask)
        self.lengths += [len(seen.ids), len(others)]
        self.penalties += (*penalties[1:], *_NO_PENALTIES[1:])

    def batched(self) -> BatchedEdits:
        """Return the edits of all rows that were added."""
        masks = torch.stack(self.masks) if self.masks else torch.empty(0, 0, dtype=torch.int32)
        tensors = EditTensors(
            torch.tensor(self.lengths),
            torch.tensor(self.penalties, dtype=torch.float32),
            _tensor(self.ids),
            _tensor(self.counts),
            torch.tensor(self.addend_indices, dtype=torch.int64),
            torch.tensor(self.addends, dtype=torch.float32),
            torch.tensor(self.masked, dtype=torch.int64),
            masks,
        )
        starts = list(accumulate(self.lengths, initial=0))[::2]
        return BatchedEdits(starts, self.masked, tensors)


def _tensor(numbers: "array[int]") -> Tensor:
    if not numbers:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(numbers, dtype=torch.int64)
