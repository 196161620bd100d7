"""What the host decides about a step's draws before the device hears of them: which rows are drawn
together and in which order, and all the numbers that a draw is told.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.logits_processors import ProcessorParams, collect_params
from quire.engine.sampling.row_params import NUM_PARAMS, pack_params
from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import Sampling


class SamplingKind(Enum):
    """How the token of a row is sampled: its largest logit, or at random from all tokens, from the
    top_k, from those that min_p leaves, from the top_p of all, or from the top_p of those."""

    GREEDY = auto()
    UNTRUNCATED = auto()
    TOP_K = auto()
    MIN_P = auto()
    TOP_P = auto()
    MIN_P_TOP_P = auto()


class RowGroup(NamedTuple):
    """Rows that are drawn at once: of one kind, at rising `places` in the batch. They come `first`
    and follow each other in the order of the draw, to before `end`; no top_k is larger than
    `max_top_k`, which is at most twice the smallest."""

    kind: SamplingKind
    places: list[int]
    first: int
    max_top_k: int

    @property
    def end(self) -> int:
        return self.first + len(self.places)


class DevicePlan(NamedTuple):
    """The numbers of a plan, on a device: the places of rows in the order of the draw; what these
    rows ask, fp64 [rows, NUM_PARAMS]; the places of rows to be scored, rising; the edits."""

    order: Tensor
    numbers: Tensor
    scored: Tensor
    processors: ProcessorParams | None


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """`processor_starts` says where among all edits those of each row start, in the order of the
    draw. Of the rows at the places `scored` the token drawn is scored, and at most the `num_top`
    likeliest."""

    groups: list[RowGroup]
    numbers: "array[float]"
    scored: list[int]
    num_top: int
    processor_starts: list[int]
    processors: ProcessorParams | None

    def pieces(self) -> list[Tensor]:
        order = [place for group in self.groups for place in group.places]
        asked = torch.tensor(self.numbers, dtype=torch.float64)
        return [_places(order), asked, _places(self.scored), *(self.processors or ())]

    def received(self, pieces: Sequence[Tensor]) -> DevicePlan:
        """What `pieces` became on the device."""
        order, numbers, scored, *processors = pieces
        table = numbers.view(len(order), NUM_PARAMS)
        return DevicePlan(
            order, table, scored, ProcessorParams(*processors) if processors else None
        )


def build_plan(rows: Sequence[SamplingState], vocab_size: int, max_rows: int) -> SamplingPlan:
    """Of groups of at most `max_rows`."""
    groups = _group_rows(rows, vocab_size, max_rows)
    ordered = [rows[place] for group in groups for place in group.places]
    numbers = array("d")
    for row in ordered:
        numbers.extend(pack_params(row, vocab_size))
    num_tops = [row.sampling.num_logprobs for row in rows]
    scored = [place for place, num_top in enumerate(num_tops) if num_top is not None]
    num_top = min(max((num_top or 0 for num_top in num_tops), default=0), vocab_size)
    starts, processors = collect_params(ordered, vocab_size)
    return SamplingPlan(groups, numbers, scored, num_top, starts, processors)


def _group_rows(rows: Sequence[SamplingState], vocab_size: int, max_rows: int) -> list[RowGroup]:
    by_kind: dict[tuple[SamplingKind, int], list[int]] = {}
    for place, row in enumerate(rows):
        kind = _kind_of(row.sampling, vocab_size)
        top_k_bits = row.sampling.top_k.bit_length() if kind is SamplingKind.TOP_K else 0
        by_kind.setdefault((kind, top_k_bits), []).append(place)
    groups: list[RowGroup] = []
    for (kind, _), places in by_kind.items():
        for start in range(0, len(places), max_rows):
            some = places[start : start + max_rows]
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


def _places(places: list[int]) -> Tensor:
    return torch.tensor(places, dtype=torch.int64)
