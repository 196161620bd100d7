"""The sampler in torch, for any device: one slab of rows at a time.

All parameters go to the device in one copy, and the results come back in one. Between them the host
never waits for a GPU, since no shape and no branch depends on the values of a tensor.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.host_to_device import to_device
from quire.engine.sampling.batched_edits import (
    BatchedEdits,
    EditedLogits,
    EditTensors,
    edit,
    mask_addends,
)
from quire.engine.sampling.device_to_host import HostCopy, build_device_to_host
from quire.engine.sampling.logprobs import (
    RowsToScore,
    score,
    to_token_logprobs,
    unpack_scores,
    with_ranks,
)
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
    RowParams,
    min_p_weight,
    sample_min_p,
    sample_top_k,
    sample_top_p,
    sample_untruncated,
    split_params,
    total_weight,
)
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


class TorchSampler:
    """Samples in a `Workspace`, which it keeps; see `Sampler`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._space = Workspace(vocab_size, device)
        self._device = device
        self._to_host = build_device_to_host(device)

    def sample(self, logits: Tensor, rows: Sequence[SamplingState]) -> PendingTorchSample:
        plan = build_plan(rows, self._space.vocab_size, self._space.max_rows)
        on_device = plan.on_device(to_device(plan.tensors(), self._device))
        token_ids, is_finite = self._sample_groups(logits, plan, on_device)
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

    def _sample_groups(
        self, logits: Tensor, plan: SamplingPlan, on_device: DevicePlan
    ) -> tuple[Tensor, Tensor]:
        """Return the ids, 0 where a row is not finite, and whether each is finite, int64 [rows]."""
        token_ids, is_finite = torch.empty_like(on_device.order), torch.empty_like(on_device.order)
        edits = None
        if plan.edits is not None and on_device.edits is not None:
            edited = edit(logits, on_device.order, on_device.edits)
            edits = _Edits(plan.edits, on_device.edits, edited)
        for group in plan.groups:
            index = on_device.order[group.first : group.end]
            loaded = self._space.load(logits, group.row_indices, index)
            if edits is not None:
                edits.apply(loaded, group)
            slab = self._space.slab(len(loaded))
            finite = slab.peaks[:, 0].isfinite().long()
            params = split_params(on_device.params[group.first : group.end])
            is_finite.index_copy_(0, index, finite)
            token_ids.index_copy_(0, index, self._sample(group, slab, params) * finite)
        return token_ids, is_finite

    def _sample(self, group: RowGroup, slab: Slab, params: RowParams) -> Tensor:
        match group.kind:
            case SamplingKind.GREEDY:
                return peak_ids(slab)
            case SamplingKind.UNTRUNCATED:
                return sample_untruncated(slab, params, self._space)
            case SamplingKind.TOP_K:
                return sample_top_k(slab, params, group.max_top_k)
            case SamplingKind.MIN_P:
                return sample_min_p(slab, params, self._space)
            case SamplingKind.TOP_P:
                totals = total_weight(slab, params, self._space)
                return sample_top_p(slab, params, totals, self._space)
            case SamplingKind.MIN_P_TOP_P:
                totals = min_p_weight(slab, params, self._space)
                return sample_top_p(slab, params, totals, self._space)


@dataclass(frozen=True, slots=True)
class _Edits:
    """The edits of all rows, in the order of sampling: where they start, their tensors on the
    device, and the edited logits."""

    batched: BatchedEdits
    tensors: EditTensors
    edited: EditedLogits

    def apply(self, loaded: Tensor, group: RowGroup) -> None:
        """Edit and mask the rows of a group in `loaded` [rows of the group, vocab_size]."""
        starts, masked = self.batched.starts, self.batched.masked
        some = slice(starts[group.first], starts[group.end])
        rows, ids, values = (each[some] for each in self.edited)
        loaded.index_put_((rows - group.first, ids), values)
        first, end = bisect_left(masked, group.first), bisect_left(masked, group.end)
        if first < end:
            masks = mask_addends(self.tensors.masks[first:end], loaded.shape[1])
            loaded.index_add_(0, self.tensors.masked_rows[first:end] - group.first, masks)
