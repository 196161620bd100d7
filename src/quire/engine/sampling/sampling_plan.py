"""The plan of a step's sampling, made on the host: which rows are sampled together and in which
order, and all numbers that the device needs for it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.batched_edits import BatchedEdits, EditTensors, batch_edits
from quire.engine.sampling.row_params import NUM_PARAMS, pack_params
from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import Sampling


class SamplingKind(Enum):
    """The ways in which the token of a row is sampled: its largest logit, or at random from all
    tokens, from the top_k, from those that min_p leaves, from the top_p of all, or from the top_p
    of those."""

    GREEDY = auto()
    UNTRUNCATED = auto()
    TOP_K = auto()
    MIN_P = auto()
    TOP_P = auto()
    MIN_P_TOP_P = auto()


class RowGroup(NamedTuple):
    """Rows that are sampled at once: of one kind, at rising `row_indices` in the batch.

    In the order of sampling they are the rows from `first` to before `end`. No top_k is larger than
    `max_top_k`, which is at most twice the smallest.
    """

    kind: SamplingKind
    row_indices: list[int]
    first: int
    max_top_k: int

    @property
    def end(self) -> int:
        """One past the last row of the group, in the order of sampling."""
        return self.first + len(self.row_indices)


class DevicePlan(NamedTuple):
    """The tensors of a plan on the device.

    order: int64 [rows], the row indices in the order of sampling.
    params: float64 [rows, NUM_PARAMS], their parameters in that order.
    scored: int64, the indices of the rows whose tokens are scored, rising.
    edits: the edits of logits processors, if any row has one.
    """

    order: Tensor
    params: Tensor
    scored: Tensor
    edits: EditTensors | None


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The plan of a step's sampling, on the host.

    groups: the rows that are sampled together.
    params: NUM_PARAMS numbers for each row, in the order of sampling.
    scored, num_top: the indices of the rows whose token gets a log probability, and how many of the
        most likely tokens at most are scored beside it.
    edits: the edits of logits processors, of rows in the order of sampling, if any row has one.
    """

    groups: list[RowGroup]
    params: "array[float]"
    scored: list[int]
    num_top: int
    edits: BatchedEdits | None

    def tensors(self) -> list[Tensor]:
        """Return the tensors to copy to the device; `on_device` takes the copies."""
        order = [index for group in self.groups for index in group.row_indices]
        params = torch.tensor(self.params, dtype=torch.float64)
        edits = () if self.edits is None else self.edits.tensors
        return [_int64(order), params, _int64(self.scored), *edits]

    def on_device(self, tensors: Sequence[Tensor]) -> DevicePlan:
        """Return the plan whose tensors are copies of `self.tensors()`."""
        order, params, scored, *edits = tensors
        table = params.view(len(order), NUM_PARAMS)
        return DevicePlan(order, table, scored, EditTensors(*edits) if edits else None)


def build_plan(rows: Sequence[SamplingState], vocab_size: int, max_rows: int) -> SamplingPlan:
    """Return a plan whose groups have at most `max_rows` rows."""
    groups = _group_rows(rows, vocab_size, max_rows)
    ordered = [rows[index] for group in groups for index in group.row_indices]
    params = array("d")
    for row in ordered:
        params.extend(pack_params(row, vocab_size))
    num_tops = [row.sampling.num_logprobs for row in rows]
    scored = [index for index, num_top in enumerate(num_tops) if num_top is not None]
    num_top = min(max((num_top or 0 for num_top in num_tops), default=0), vocab_size)
    return SamplingPlan(groups, params, scored, num_top, batch_edits(ordered, vocab_size))


def _group_rows(rows: Sequence[SamplingState], vocab_size: int, max_rows: int) -> list[RowGroup]:
    by_kind: dict[tuple[SamplingKind, int], list[int]] = {}
    for index, row in enumerate(rows):
        kind = _kind_of(row.sampling, vocab_size)
        top_k_bits = row.sampling.top_k.bit_length() if kind is SamplingKind.TOP_K else 0
        by_kind.setdefault((kind, top_k_bits), []).append(index)
    groups: list[RowGroup] = []
    for (kind, _), indices in by_kind.items():
        for start in range(0, len(indices), max_rows):
            some = indices[start : start + max_rows]
            first = groups[-1].end if groups else 0
            groups.append(RowGroup(kind, some, first, max(rows[at].sampling.top_k for at in some)))
    return groups


def _kind_of(params: Sampling, vocab_size: int) -> SamplingKind:
    if params.temperature == 0:
        return SamplingKind.GREEDY
    if 0 < params.top_k < vocab_size:
        return SamplingKind.TOP_K
    if params.min_p > 0:
        return SamplingKind.MIN_P_TOP_P if params.top_p < 1 else SamplingKind.MIN_P
    return SamplingKind.TOP_P if params.top_p < 1 else SamplingKind.UNTRUNCATED


def _int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
