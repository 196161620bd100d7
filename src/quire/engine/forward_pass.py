"""Computes the rows of a step; after a failure, in parts, until the failing request is isolated."""

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.failure_kind import RanksFailed
from quire.engine.step_errors import check_device, failure_of
from quire.models.batch import Batch, BatchPart, Model, StepRows, cut_between_chunks, cut_in_half
from quire.scheduler.step import StepFailure

logger = logging.getLogger(__name__)


class ForwardOutput(NamedTuple):
    """The rows of a step. Those of `failed_chunks`, by their index, hold zeros. `failure` says what
    kept the step from being computed at once, if anything did.
    """

    rows: StepRows
    failed_chunks: frozenset[int] = frozenset()
    failure: StepFailure | None = None


class _Computed(NamedTuple):
    """A part of a step and its rows, None if its chunk has failed."""

    batch: Batch
    rows: StepRows | None


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Runs `model` on batches. Computing a token again writes the same keys and values to the same
    slots, so that a step may be computed in parts after any error; but not states of recurrent
    layers, which may be written where they are read. Unless it `cuts_prompts`, a chunk is computed
    whole.
    """

    model: Model
    device: torch.device
    cuts_prompts: bool = True

    def run(self, batch: Batch) -> ForwardOutput:
        """Return the rows of a batch.

        Raises DeviceFailed where the device is dead, RanksFailed where the ranks of the model are
        out of step, and the batch's own error where all of its chunks, of two or more, fail: then
        it is nothing about one of them, or where it has states of recurrent layers.
        """
        try:
            return ForwardOutput(self._rows(batch))
        except Exception as error:
            first = self._examine(error)
            if batch.pieces is not None:
                raise first from None
        failure = failure_of(first)
        logger.warning(
            "a step of %d tokens of %d requests fails and is computed in parts: %s",
            len(batch.positions),
            len(batch.context_lens),
            first,
        )
        parts = self._cut(BatchPart(batch, 0), failure) or (BatchPart(batch, 0),)
        computed, failed = self._in_parts(list(reversed(parts)))
        if len(failed) == len(batch.context_lens) > 1:
            raise first
        return ForwardOutput(_joined(computed, self.model.vocab_size), frozenset(failed), failure)

    def _in_parts(self, left: list[BatchPart]) -> tuple[list[_Computed], set[int]]:
        """Compute the parts `left`, the last of them first, each in parts again if it fails."""
        computed: list[_Computed] = []
        failed: set[int] = set()
        while left:
            part = left.pop()
            if failed.issuperset(part.chunks):
                computed.append(_Computed(part.batch, None))
                continue
            try:
                computed.append(_Computed(part.batch, self._kept_rows(part.batch)))
            except Exception as error:
                failure = failure_of(self._examine(error))
                smaller = self._cut(part, failure)
                if smaller is None:
                    logger.warning("a part that cannot be cut fails: %s", error)
                    failed.update(part.chunks)
                    computed.append(_Computed(part.batch, None))
                else:
                    left += reversed(smaller)
        return computed, failed

    def _rows(self, batch: Batch) -> StepRows:
        if batch.states_indices is not None:
            return self.model.forward_with_states(batch)
        return StepRows(self.model.forward(batch))

    def _kept_rows(self, batch: Batch) -> StepRows:
        """Return rows that the next part leaves as they are: a model may write all logits to the
        same place."""
        logits, states = self._rows(batch)
        return StepRows(logits.clone(), states)

    def _examine(self, error: Exception) -> Exception:
        """Let go of the tensors of a step that failed, and see that the device still computes.
        Raises DeviceFailed where it does not, and the error itself where ranks are out of step."""
        if isinstance(error, RanksFailed):
            raise error
        traceback.clear_frames(error.__traceback__)
        check_device(self.device, error)
        return error

    def _cut(self, part: BatchPart, failure: StepFailure) -> tuple[BatchPart, BatchPart] | None:
        """Return the two halves of a part, None for a single chunk."""
        if failure is StepFailure.OUT_OF_MEMORY and self.cuts_prompts:
            return cut_in_half(part)
        return cut_between_chunks(part)


def _joined(computed: list[_Computed], vocab_size: int) -> StepRows:
    """Return the rows of all parts, zeros for failed parts."""
    logits = [None if each.rows is None else each.rows.logits for each in computed]
    wanted = [each.batch.logits_indices for each in computed]
    states = [None if each.rows is None else each.rows.states for each in computed]
    of_states = [
        each.batch.states_indices for each in computed if each.batch.states_indices is not None
    ]
    stacked = _stacked(logits, wanted, vocab_size)
    return StepRows(stacked, _stacked(states, of_states, 1) if of_states else None)


def _stacked(parts: Sequence[Tensor | None], indices: Sequence[Tensor], width: int) -> Tensor:
    """Return the rows of the parts below each other. A part that is None has a row of zeros for
    each of its indices, as wide as the others' rows; `width` where there are no others."""
    like = next((part for part in parts if part is not None), None)
    if like is None:
        like = torch.empty(0, width, device=indices[0].device)
    zeros = [like.new_zeros(len(each), like.shape[1]) for each in indices]
    pairs = zip(parts, zeros, strict=True)
    return torch.cat([empty if part is None else part for part, empty in pairs])
