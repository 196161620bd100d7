"""Samples rows by one launch of Triton's kernel, on a GPU or in its interpreter."""

import torch
from torch import Tensor

from quire.engine.sampling.batched_edits import OrderedEdits, edits_in_order
from quire.engine.sampling.sampling_plan import DevicePlan, SamplingPlan
from quire.engine.sampling.tiles import slab_rows
from quire.engine.sampling.triton.launch import NUM_WARPS, num_lanes, sample_constants
from quire.engine.sampling.triton.sample_kernel import sample
from quire.engine.sampling.triton.search_kernel import SLOTS
from quire.models.triton_device import is_interpreted

EDITED_SLABS = 3
"""Slabs of rows that are copied to be edited at once: a copy and its masks take less than what a
slab takes that torch samples."""


class FusedSampler:
    """A `RowsSampler`. Logits are read in place; those of steps with edits are copied."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._constants = sample_constants(vocab_size)
        self._list_size = SLOTS.value * num_lanes(vocab_size)
        self._max_edited = EDITED_SLABS * slab_rows(vocab_size, device)
        self._is_interpreted = is_interpreted()

    def sample(
        self, logits: Tensor, plan: SamplingPlan, on_device: DevicePlan
    ) -> tuple[Tensor, Tensor]:
        found = torch.empty_like(on_device.order), torch.empty_like(on_device.order)
        edits = edits_in_order(logits, on_device.order, plan.edits, on_device.edits)
        if edits is None:
            self._launch(logits, on_device, found, is_ordered=False)
            return found
        for first in range(0, len(on_device.order), self._max_edited):
            some = slice(first, first + self._max_edited)
            part = on_device._replace(order=on_device.order[some], params=on_device.params[some])
            self._launch(_edited(logits, part, edits, first), part, found, is_ordered=True)
        return found

    def _launch(
        self, logits: Tensor, plan: DevicePlan, found: tuple[Tensor, Tensor], *, is_ordered: bool
    ) -> None:
        logits = logits if logits.stride(1) == 1 else logits.contiguous()
        shape = (len(plan.order), self._list_size)
        listed = torch.empty(shape, dtype=torch.int32, device=logits.device)
        sample[(len(plan.order),)](
            *(logits, plan.order, plan.params, listed, *found, logits.stride(0)),
            IS_ORDERED=is_ordered,
            **self._constants,
            IS_INTERPRETED=self._is_interpreted,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )


def _edited(logits: Tensor, plan: DevicePlan, edits: OrderedEdits, first: int) -> Tensor:
    """Return the rows of a plan with their edits, float32, in the order of sampling."""
    loaded = logits.index_select(0, plan.order).float()
    edits.apply(loaded, first)
    return loaded
