"""The sampler in torch, for any device: a slab of rows at a time. It tells the device all that is
asked in one copy, and what is found comes back in one; between them nobody waits for a GPU, as no
shape and no branch depends on what a tensor holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.inputs import send
from quire.engine.sampling.draw_plan import DrawPlan, Kind, Part, Sent, build_plan
from quire.engine.sampling.host_link import Arrival, build_host_link
from quire.engine.sampling.logit_edits import Edited, edit
from quire.engine.sampling.logprobs import Scored, score, told, unpacked
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.sampler import Drawn
from quire.engine.sampling.tiles import Slab, Workspace, peak_ids
from quire.engine.sampling.truncation import (
    Options,
    draw_likely,
    draw_nucleus,
    draw_top,
    draw_whole,
    options_of,
    weight_of_likely,
    weight_of_whole,
)
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TorchDraw:
    """`arrival` brings the ids, whether each row is finite, and the packed scores.
    `asked_tops`: by row, how many of the likeliest are asked for; None: no log probability."""

    token_ids: Tensor
    arrival: Arrival
    asked_tops: list[int | None]

    def result(self) -> Drawn:
        num_rows = len(self.asked_tops)
        numbers = self.arrival.wait()
        drawn = numbers[:num_rows].long().tolist()
        not_finite = (numbers[num_rows : 2 * num_rows] == 0).tolist()
        logprobs = self._logprobs(drawn, numbers[2 * num_rows :])
        for place, is_lost in enumerate(not_finite):
            if is_lost:
                logprobs[place] = None
        return Drawn(drawn, logprobs, not_finite)

    def _logprobs(self, drawn: list[int], packed: Tensor) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(drawn)
        scored = [place for place, num_top in enumerate(self.asked_tops) if num_top is not None]
        scores = unpacked(packed, len(scored))
        for place, each in zip(scored, told([drawn[at] for at in scored], scores), strict=True):
            found[place] = each._replace(top=each.top[: self.asked_tops[place]])
        return found


class TorchSampler:
    """Holds the working memory of its draws, a `Workspace`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._space = Workspace(vocab_size, device)
        self._device = device
        self._link = build_host_link(device)

    def draw(self, logits: Tensor, rows: Sequence[SampleRow]) -> TorchDraw:
        plan = build_plan(rows, self._space.vocab_size, self._space.max_rows)
        sent = plan.received(send(plan.pieces(), self._device))
        token_ids, is_finite = self._draw_parts(logits, plan, sent)
        found = [token_ids.double(), is_finite.double()]
        if plan.scored:
            wanted = Scored(plan.scored, sent.scored, token_ids[sent.scored])
            found.append(score(self._space, logits, wanted, plan.num_top).packed())
        asked_tops = [row.sampling.num_logprobs for row in rows]
        return TorchDraw(token_ids, self._link.fetch(torch.cat(found)), asked_tops)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        places = range(len(token_ids))
        pieces = [torch.tensor(places), torch.tensor(token_ids)]
        wanted = Scored(places, *send(pieces, self._device))
        scores = score(self._space, logits, wanted, min(num_top, self._space.vocab_size))
        return list(told(token_ids, scores))

    def _draw_parts(self, logits: Tensor, plan: DrawPlan, sent: Sent) -> tuple[Tensor, Tensor]:
        """The ids drawn, 0 where a row is not finite, and whether it is, int64 [rows] both."""
        token_ids, is_finite = torch.empty_like(sent.order), torch.empty_like(sent.order)
        edited = None if sent.touched is None else edit(logits, sent.order, sent.touched)
        for part in plan.parts:
            index = sent.order[part.first : part.end]
            loaded = self._space.load(logits, part.places, index)
            if edited is not None:
                edits = slice(plan.edit_starts[part.first], plan.edit_starts[part.end])
                _apply(loaded, edited, edits, part.first)
            slab = self._space.slab(len(loaded))
            fine = slab.peaks[:, 0].isfinite().long()
            options = options_of(sent.numbers[part.first : part.end])
            is_finite.index_copy_(0, index, fine)
            token_ids.index_copy_(0, index, self._draw(part, slab, options) * fine)
        return token_ids, is_finite

    def _draw(self, part: Part, slab: Slab, options: Options) -> Tensor:
        match part.kind:
            case Kind.GREEDY:
                return peak_ids(slab)
            case Kind.WHOLE:
                return draw_whole(slab, options, self._space)
            case Kind.TOP:
                return draw_top(slab, options, part.max_top_k)
            case Kind.LIKELY:
                return draw_likely(slab, options, self._space)
            case Kind.NUCLEUS:
                totals = weight_of_whole(slab, options, self._space)
                return draw_nucleus(slab, options, totals, self._space)
            case Kind.LIKELY_NUCLEUS:
                totals = weight_of_likely(slab, options, self._space)
                return draw_nucleus(slab, options, totals, self._space)


def _apply(loaded: Tensor, edited: Edited, edits: slice, first: int) -> None:
    """Put `edits` in their places among `loaded`, whose first row is row `first`."""
    rows, ids, values = (each[edits] for each in edited)
    loaded.index_put_((rows - first, ids), values)
