"""The sampler in torch, for any device: one slab of rows at a time.

All parameters go to the device in one copy, and the results come back in one. Between them the host
never waits for a GPU, since no shape and no branch depends on the values of a tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.engine.host_to_device import to_device
from quire.engine.sampling.device_to_host import HostCopy, build_device_to_host
from quire.engine.sampling.logprobs import (
    RowsToScore,
    score,
    to_token_logprobs,
    unpack_scores,
    with_ranks,
)
from quire.engine.sampling.sampler import SamplerOutput
from quire.engine.sampling.sampling_plan import DevicePlan, SamplingPlan, build_plan
from quire.engine.sampling.sampling_state import SamplingState
from quire.engine.sampling.slab_sampler import SlabSampler
from quire.engine.sampling.tiles import SamplingWorkspace
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingTorchSample:
    """Tokens that the device may still be computing.

    host_copy: float64, the ids, then 1 for each row that is finite, then the packed scores.
    num_tops: for each row how many top log probabilities it requests, or None for none at all.
    """

    token_ids: Tensor
    host_copy: HostCopy
    num_tops: list[int | None]

    def result(self) -> SamplerOutput:
        num_rows = len(self.num_tops)
        numbers = self.host_copy.wait()
        sampled = numbers[:num_rows].long().tolist()
        not_finite = (numbers[num_rows : 2 * num_rows] == 0).tolist()
        logprobs = self._logprobs(sampled, numbers[2 * num_rows :])
        for row, is_broken in enumerate(not_finite):
            if is_broken:
                logprobs[row] = None
        return SamplerOutput(sampled, logprobs, not_finite)

    def _logprobs(self, sampled: list[int], packed: Tensor) -> list[TokenLogprobs | None]:
        found: list[TokenLogprobs | None] = [None] * len(sampled)
        scored = [row for row, num_top in enumerate(self.num_tops) if num_top is not None]
        scores = unpack_scores(packed, len(scored))
        for row, each in zip(
            scored, to_token_logprobs([sampled[at] for at in scored], scores), strict=True
        ):
            found[row] = each._replace(top=each.top[: self.num_tops[row]])
        return found


class RowsSampler(Protocol):
    """Samples a token of each row on the device of the logits."""

    def sample(
        self, logits: Tensor, plan: SamplingPlan, on_device: DevicePlan
    ) -> tuple[Tensor, Tensor]:
        """Return the ids, 0 where a row is not finite, and whether each is finite, int64 [rows]."""


class TorchSampler:
    """Samples by `rows`, or else slab by slab, and scores in a `SamplingWorkspace`, which it keeps;
    see `Sampler`."""

    def __init__(
        self, vocab_size: int, device: torch.device, rows: RowsSampler | None = None
    ) -> None:
        self._space = SamplingWorkspace(vocab_size, device)
        self._rows = SlabSampler(self._space) if rows is None else rows
        self._device = device
        self._to_host = build_device_to_host(device)

    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingTorchSample:
        plan = build_plan(rows, self._space.vocab_size, self._space.max_rows)
        on_device = plan.on_device(to_device(plan.tensors(), self._device))
        token_ids, is_finite = self._rows.sample(logits, plan, on_device)
        found = [token_ids.double(), is_finite.double()]
        if plan.scored:
            to_score = RowsToScore(plan.scored, on_device.scored, token_ids[on_device.scored])
            found.append(score(self._space, logits, to_score, plan.num_top).pack())
        num_tops = [row.sampling.num_logprobs for row in rows]
        return PendingTorchSample(token_ids, self._to_host.fetch(torch.cat(found)), num_tops)

    def score(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
        if not token_ids:
            return []
        row_indices = range(len(token_ids))
        tensors = [torch.tensor(row_indices), torch.tensor(token_ids)]
        to_score = RowsToScore(row_indices, *to_device(tensors, self._device))
        scores = score(self._space, logits, to_score, min(num_top, self._space.vocab_size))
        return with_ranks(to_token_logprobs(token_ids, scores), logits, to_score.token_ids)
