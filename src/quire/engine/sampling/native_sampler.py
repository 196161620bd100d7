"""The sampler over the C++ kernel: all that is left here is to say what each row asks."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.sampling.asked import numbers_of
from quire.engine.sampling.logit_edits import find_edits
from quire.engine.sampling.sample_row import SampleRow
from quire.engine.sampling.sampler import Drawn
from quire.models.native.sampling.sampling import Asked, Sampled, SamplingKernel
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class NativeDraw:
    """`asked_tops`: by row, how many of the likeliest are asked for; None: no log probability."""

    sampled: Sampled
    asked_tops: list[int | None]

    @property
    def token_ids(self) -> Tensor:
        return self.sampled.token_ids.clamp(min=0)

    def result(self) -> Drawn:
        drawn = self.sampled.token_ids.tolist()
        return Drawn(
            [max(token_id, 0) for token_id in drawn],
            _asked_scores(self.sampled, self.asked_tops),
            [token_id < 0 for token_id in drawn],
        )


class NativeSampler:
    """For logits on the CPU."""

    def __init__(self, kernel: SamplingKernel) -> None:
        self._kernel = kernel

    def draw(self, logits: Tensor, rows: Sequence[SampleRow]) -> NativeDraw:
        vocab_size = logits.shape[1]
        numbers = array("d")
        asked_tops: list[int | None] = []
        for row in rows:
            num_top = row.sampling.num_logprobs
            asked_tops.append(num_top)
            numbers.extend(numbers_of(row, vocab_size))
            numbers.append(-1 if num_top is None else min(num_top, vocab_size))
        max_top = max((min(top, vocab_size) for top in asked_tops if top is not None), default=0)
        sampled = self._kernel.draw(logits, Asked(numbers, max_top, find_edits(logits, rows)))
        return NativeDraw(sampled, asked_tops)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        wanted = torch.tensor(token_ids, dtype=torch.int64)
        return list(_scores(self._kernel.score(logits, wanted, min(num_top, logits.shape[1]))))


def _asked_scores(sampled: Sampled, asked_tops: list[int | None]) -> list[TokenLogprobs | None]:
    if all(num_top is None for num_top in asked_tops):
        return [None] * len(asked_tops)
    return [
        None if num_top is None or each.token_id < 0 else each._replace(top=each.top[:num_top])
        for num_top, each in zip(asked_tops, _scores(sampled), strict=True)
    ]


def _scores(sampled: Sampled) -> Iterator[TokenLogprobs]:
    for row in zip(*(each.tolist() for each in sampled), strict=True):
        token_id, logprob, top_ids, top_logprobs = row
        yield TokenLogprobs(token_id, logprob, tuple(zip(top_ids, top_logprobs, strict=True)))
