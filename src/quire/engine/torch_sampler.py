"""The sampler in torch, for any device: a slab of rows at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from quire.engine.logit_edits import apply_edits, find_edits
from quire.engine.logprobs import score
from quire.engine.sample_row import SampleRow
from quire.engine.sampler import Drawn
from quire.engine.tiles import Slab, Workspace, likeliest
from quire.engine.truncation import build_options, draw_bounded, draw_nucleus, draw_whole
from quire.scheduler.request import Sampling, TokenLogprobs


class _Kind(Enum):
    """What a draw looks at: the peak; all tokens; those within a bound; a share of the whole."""

    GREEDY = auto()
    WHOLE = auto()
    BOUNDED = auto()
    NUCLEUS = auto()


def _kind_of(asked: Sampling, vocab_size: int) -> _Kind:
    if asked.temperature == 0:
        return _Kind.GREEDY
    if 0 < asked.top_k < vocab_size or asked.min_p > 0:
        return _Kind.BOUNDED
    return _Kind.NUCLEUS if asked.top_p < 1 else _Kind.WHOLE


@dataclass(frozen=True, slots=True)
class TorchDraw:
    token_ids: Tensor
    drawn: Drawn

    def result(self) -> Drawn:
        return self.drawn


class TorchSampler:
    """Holds the working memory of its draws: 12 bytes for each logit worked on at once."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._space = Workspace(vocab_size, device)

    def draw(self, logits: Tensor, rows: Sequence[SampleRow]) -> TorchDraw:
        token_ids = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
        finite = torch.zeros_like(token_ids)
        for kind, places in self._parts(rows):
            index = torch.tensor(places, device=logits.device)
            part = [rows[place] for place in places]
            loaded = self._space.load(logits, places)
            if (edits := find_edits(loaded, part)) is not None:
                apply_edits(loaded, edits)
            slab = self._space.slab(len(part))
            finite[index] = slab.peaks[:, 0].isfinite().long()
            token_ids[index] = self._draw(kind, slab, part)
        drawn, fine = torch.stack((token_ids * finite, finite)).tolist()
        logprobs = self._logprobs(logits, rows, drawn, fine)
        return TorchDraw(token_ids * finite, Drawn(drawn, logprobs, [not each for each in fine]))

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        return list(score(self._space, logits, range(len(token_ids)), token_ids, num_top))

    def _parts(self, rows: Sequence[SampleRow]) -> Iterator[tuple[_Kind, list[int]]]:
        """The places of rows of one kind, at most a slab of them at once."""
        groups: dict[_Kind, list[int]] = {}
        for place, row in enumerate(rows):
            kind = _kind_of(row.sampling, self._space.vocab_size)
            groups.setdefault(kind, []).append(place)
        for kind, places in groups.items():
            for start in range(0, len(places), self._space.max_rows):
                yield kind, places[start : start + self._space.max_rows]

    def _draw(self, kind: _Kind, slab: Slab, rows: Sequence[SampleRow]) -> Tensor:
        if kind is _Kind.GREEDY:
            return likeliest(slab)
        options = build_options(rows, self._space.vocab_size, slab.peaks.device)
        if kind is _Kind.BOUNDED:
            return draw_bounded(slab, options)
        if kind is _Kind.NUCLEUS:
            return draw_nucleus(slab, options, self._space)
        return draw_whole(slab, options, self._space)

    def _logprobs(
        self, logits: Tensor, rows: Sequence[SampleRow], drawn: Sequence[int], fine: Sequence[int]
    ) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(rows)
        asked = {
            place: row.sampling.num_logprobs
            for place, row in enumerate(rows)
            if fine[place] and row.sampling.num_logprobs is not None
        }
        if asked:
            ids = [drawn[place] for place in asked]
            scored = score(self._space, logits, list(asked), ids, max(asked.values()))
            for (place, num_top), each in zip(asked.items(), scored, strict=True):
                found[place] = each._replace(top=each.top[:num_top])
        return found
