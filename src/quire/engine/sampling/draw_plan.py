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

from quire.engine.sampling.asked import NUM_NUMBERS, numbers_of
from quire.engine.sampling.logit_edits import Touched, find_touched
from quire.engine.sampling.sample_row import SampleRow
from quire.scheduler.request import Sampling


class Kind(Enum):
    """What is drawn: the peak; one of all tokens; of the top_k; of those that min_p leaves; of the
    nucleus of all, or of these."""

    GREEDY = auto()
    WHOLE = auto()
    TOP = auto()
    LIKELY = auto()
    NUCLEUS = auto()
    LIKELY_NUCLEUS = auto()


class Part(NamedTuple):
    """Rows that are drawn at once: of one kind, at rising `places` in the batch. They come `first`
    and follow each other in the order of the draw, to before `end`; no top_k is larger than
    `max_top_k`, which is at most twice the smallest."""

    kind: Kind
    places: list[int]
    first: int
    max_top_k: int

    @property
    def end(self) -> int:
        return self.first + len(self.places)


class Sent(NamedTuple):
    """The numbers of a plan, on a device: the places of rows in the order of the draw; what these
    rows ask, fp64 [rows, NUM_NUMBERS]; the places of rows to be scored, rising; the edits."""

    order: Tensor
    numbers: Tensor
    scored: Tensor
    touched: Touched | None


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """`edit_starts` says where among all edits those of each row start, in the order of the draw.
    Of the rows at the places `scored` the token drawn is scored, and at most the `num_top`
    likeliest."""

    parts: list[Part]
    numbers: "array[float]"
    scored: list[int]
    num_top: int
    edit_starts: list[int]
    touched: Touched | None

    def pieces(self) -> list[Tensor]:
        order = [place for part in self.parts for place in part.places]
        asked = torch.tensor(self.numbers, dtype=torch.float64)
        return [_places(order), asked, _places(self.scored), *(self.touched or ())]

    def received(self, pieces: Sequence[Tensor]) -> Sent:
        """What `pieces` became on the device."""
        order, numbers, scored, *touched = pieces
        table = numbers.view(len(order), NUM_NUMBERS)
        return Sent(order, table, scored, Touched(*touched) if touched else None)


def build_plan(rows: Sequence[SampleRow], vocab_size: int, max_rows: int) -> DrawPlan:
    """Of parts of at most `max_rows`."""
    parts = _parts(rows, vocab_size, max_rows)
    ordered = [rows[place] for part in parts for place in part.places]
    numbers = array("d")
    for row in ordered:
        numbers.extend(numbers_of(row, vocab_size))
    asked_tops = [row.sampling.num_logprobs for row in rows]
    scored = [place for place, num_top in enumerate(asked_tops) if num_top is not None]
    num_top = min(max((num_top or 0 for num_top in asked_tops), default=0), vocab_size)
    starts, touched = find_touched(ordered, vocab_size)
    return DrawPlan(parts, numbers, scored, num_top, starts, touched)


def _parts(rows: Sequence[SampleRow], vocab_size: int, max_rows: int) -> list[Part]:
    groups: dict[tuple[Kind, int], list[int]] = {}
    for place, row in enumerate(rows):
        kind = _kind_of(row.sampling, vocab_size)
        top_k_bits = row.sampling.top_k.bit_length() if kind is Kind.TOP else 0
        groups.setdefault((kind, top_k_bits), []).append(place)
    parts: list[Part] = []
    for (kind, _), places in groups.items():
        for start in range(0, len(places), max_rows):
            some = places[start : start + max_rows]
            first = parts[-1].end if parts else 0
            parts.append(Part(kind, some, first, max(rows[at].sampling.top_k for at in some)))
    return parts


def _kind_of(asked: Sampling, vocab_size: int) -> Kind:
    if asked.temperature == 0:
        return Kind.GREEDY
    if 0 < asked.top_k < vocab_size:
        return Kind.TOP
    if asked.min_p > 0:
        return Kind.LIKELY_NUCLEUS if asked.top_p < 1 else Kind.LIKELY
    return Kind.NUCLEUS if asked.top_p < 1 else Kind.WHOLE


def _places(places: list[int]) -> Tensor:
    return torch.tensor(places, dtype=torch.int64)
