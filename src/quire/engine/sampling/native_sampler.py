"""The sampler over the C++ kernel: packs the parameters of rows, unpacks its results."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.sampling.batched_edits import edits_on_cpu
from quire.engine.sampling.logprobs import with_ranks
from quire.engine.sampling.row_params import pack_params
from quire.engine.sampling.sampler import SamplerOutput
from quire.engine.sampling.sampling_state import SamplingState
from quire.models.native.sampling.sampling import SampledTokens, SamplingKernel, SamplingMetadata
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingNativeSample:
    """The tokens that the kernel sampled. `num_tops` has for each row how many top log
    probabilities it requests, or None if it requests none at all."""

    sampled: SampledTokens
    num_tops: list[int | None]

    @property
    def token_ids(self) -> Tensor:
        return self.sampled.token_ids.clamp(min=0)

    def result(self) -> SamplerOutput:
        sampled = self.sampled.token_ids.tolist()
        return SamplerOutput(
            [max(token_id, 0) for token_id in sampled],
            _requested_scores(self.sampled, self.num_tops),
            [token_id < 0 for token_id in sampled],
        )


class NativeSampler:
    """Samples from logits on the CPU; see `Sampler`."""

    def __init__(self, kernel: SamplingKernel) -> None:
        self._kernel = kernel

    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingNativeSample:
        vocab_size = logits.shape[1]
        numbers = array("d")
        num_tops: list[int | None] = []
        for row in rows:
            num_top = row.sampling.num_logprobs
            num_tops.append(num_top)
            numbers.extend(pack_params(row, vocab_size))
            numbers.append(-1 if num_top is None else min(num_top, vocab_size))
        max_top = max((min(top, vocab_size) for top in num_tops if top is not None), default=0)
        edits, masks = edits_on_cpu(logits, rows)
        sampled = self._kernel.sample(logits, SamplingMetadata(numbers, max_top, edits, masks))
        return PendingNativeSample(sampled, num_tops)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        targets = torch.tensor(token_ids, dtype=torch.int64)
        scores = _scores(self._kernel.score(logits, targets, min(num_top, logits.shape[1])))
        return with_ranks(scores, logits, targets)


def _requested_scores(
    sampled: SampledTokens, num_tops: list[int | None]
) -> list[TokenLogprobs | None]:
    if all(num_top is None for num_top in num_tops):
        return [None] * len(num_tops)
    return [
        None if num_top is None or each.token_id < 0 else each._replace(top=each.top[:num_top])
        for num_top, each in zip(num_tops, _scores(sampled), strict=True)
    ]


def _scores(sampled: SampledTokens) -> Iterator[TokenLogprobs]:
    for row in zip(*(each.tolist() for each in sampled), strict=True):
        token_id, logprob, top_ids, top_logprobs = row
        yield TokenLogprobs(token_id, logprob, tuple(zip(top_ids, top_logprobs, strict=True)))
