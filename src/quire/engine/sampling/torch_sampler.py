"""The sampler in torch, for any device: a slab of rows at a time. It tells the device all that is
asked in one copy, and what is found comes back in one; between them nobody waits for a GPU, as no
shape and no branch depends on what a tensor holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.host_to_device import to_device
from quire.engine.sampling.device_to_host import HostCopy, build_device_to_host
from quire.engine.sampling.logits_processors import ProcessedLogits, process
from quire.engine.sampling.logprobs import RowsToScore, score, to_token_logprobs, unpack_scores
from quire.engine.sampling.sampler import SamplerOutput
from quire.engine.sampling.sampling_plan import (
    DevicePlan,
    RowGroup,
    SamplingKind,
    SamplingPlan,
    build_plan,
)
from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.sampling.tiles import Slab, Workspace, peak_ids
from quire.engine.sampling.truncation import (
    Options,
    min_p_weight,
    options_of,
    sample_min_p,
    sample_top_k,
    sample_top_p,
    sample_untruncated,
    total_weight,
)
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingTorchSample:
    """`host_copy` brings the ids, whether each row is finite, and the packed scores.
    `num_tops`: by row, how many of the likeliest are asked for; None: no log probability."""

    token_ids: Tensor
    host_copy: HostCopy
    num_tops: list[int | None]

    def result(self) -> SamplerOutput:
        num_rows = len(self.num_tops)
        numbers = self.host_copy.wait()
        sampled = numbers[:num_rows].long().tolist()
        not_finite = (numbers[num_rows : 2 * num_rows] == 0).tolist()
        logprobs = self._logprobs(sampled, numbers[2 * num_rows :])
        for place, is_lost in enumerate(not_finite):
            if is_lost:
                logprobs[place] = None
        return SamplerOutput(sampled, logprobs, not_finite)

    def _logprobs(self, sampled: list[int], packed: Tensor) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(sampled)
        scored = [place for place, num_top in enumerate(self.num_tops) if num_top is not None]
        scores = unpack_scores(packed, len(scored))
        for place, each in zip(
            scored, to_token_logprobs([sampled[at] for at in scored], scores), strict=True
        ):
            found[place] = each._replace(top=each.top[: self.num_tops[place]])
        return found


class TorchSampler:
    """Holds the working memory of its draws, a `Workspace`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._space = Workspace(vocab_size, device)
        self._device = device
        self._to_host = build_device_to_host(device)

    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingTorchSample:
        plan = build_plan(rows, self._space.vocab_size, self._space.max_rows)
        sent = plan.received(to_device(plan.pieces(), self._device))
        token_ids, is_finite = self._sample_groups(logits, plan, sent)
        found = [token_ids.double(), is_finite.double()]
        if plan.scored:
            wanted = RowsToScore(plan.scored, sent.scored, token_ids[sent.scored])
            found.append(score(self._space, logits, wanted, plan.num_top).pack())
        num_tops = [row.sampling.num_logprobs for row in rows]
        return PendingTorchSample(token_ids, self._to_host.fetch(torch.cat(found)), num_tops)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        places = range(len(token_ids))
        pieces = [torch.tensor(places), torch.tensor(token_ids)]
        wanted = RowsToScore(places, *to_device(pieces, self._device))
        scores = score(self._space, logits, wanted, min(num_top, self._space.vocab_size))
        return list(to_token_logprobs(token_ids, scores))

    def _sample_groups(
        self, logits: Tensor, plan: SamplingPlan, sent: DevicePlan
    ) -> tuple[Tensor, Tensor]:
        """The ids sampled, 0 where a row is not finite, and whether it is, int64 [rows] both."""
        token_ids, is_finite = torch.empty_like(sent.order), torch.empty_like(sent.order)
        edited = None if sent.processors is None else process(logits, sent.order, sent.processors)
        for group in plan.groups:
            index = sent.order[group.first : group.end]
            loaded = self._space.load(logits, group.places, index)
            if edited is not None:
                edits = slice(plan.processor_starts[group.first], plan.processor_starts[group.end])
                _apply(loaded, edited, edits, group.first)
            slab = self._space.slab(len(loaded))
            fine = slab.peaks[:, 0].isfinite().long()
            options = options_of(sent.numbers[group.first : group.end])
            is_finite.index_copy_(0, index, fine)
            token_ids.index_copy_(0, index, self._sample(group, slab, options) * fine)
        return token_ids, is_finite

    def _sample(self, group: RowGroup, slab: Slab, options: Options) -> Tensor:
        match group.kind:
            case SamplingKind.GREEDY:
                return peak_ids(slab)
            case SamplingKind.UNTRUNCATED:
                return sample_untruncated(slab, options, self._space)
            case SamplingKind.TOP_K:
                return sample_top_k(slab, options, group.max_top_k)
            case SamplingKind.MIN_P:
                return sample_min_p(slab, options, self._space)
            case SamplingKind.TOP_P:
                totals = total_weight(slab, options, self._space)
                return sample_top_p(slab, options, totals, self._space)
            case SamplingKind.MIN_P_TOP_P:
                totals = min_p_weight(slab, options, self._space)
                return sample_top_p(slab, options, totals, self._space)


def _apply(loaded: Tensor, edited: ProcessedLogits, edits: slice, first: int) -> None:
    """Put `edits` in their places among `loaded`, whose first row is row `first`."""
    rows, ids, values = (each[edits] for each in edited)
    loaded.index_put_((rows - first, ids), values)
