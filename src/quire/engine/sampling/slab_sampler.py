"""Samples a slab of rows at a time, by torch's operations, for any device."""

import torch
from torch import Tensor

from quire.engine.sampling.batched_edits import edits_in_order
from quire.engine.sampling.sampling_plan import DevicePlan, RowGroup, SamplingKind, SamplingPlan
from quire.engine.sampling.tiles import SamplingWorkspace, Slab, peak_ids
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


class SlabSampler:
    """A `RowsSampler` in the workspace `space`."""

    def __init__(self, space: SamplingWorkspace) -> None:
        self._space = space

    def sample(
        self, logits: Tensor, plan: SamplingPlan, on_device: DevicePlan
    ) -> tuple[Tensor, Tensor]:
        token_ids, is_finite = torch.empty_like(on_device.order), torch.empty_like(on_device.order)
        edits = edits_in_order(logits, on_device.order, plan.edits, on_device.edits)
        for group in plan.groups:
            index = on_device.order[group.first : group.end]
            loaded = self._space.load(logits, group.row_indices, index)
            if edits is not None:
                edits.apply(loaded, group.first)
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
