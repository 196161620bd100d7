"""The function of group_weights.cpp: float32 weights become integers with a scale for each group of
columns, for the kernel of weights in groups to multiply by."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.native.linear.quantised.grouped import (
    FUNCTIONS,
    GroupedKernel,
    shard_starts,
)
from quire.models.native.packed_weight import PackedWeight, check
from quire.models.weights.group_form import GroupForm
from quire.models.weights.grouped_weight import GroupedWeight
from quire.models.weights.weight_kernel import WeightOutline

GROUP_SIZES = (32, 16)
"""The first that divides the columns of a weight is taken."""


@dataclass(frozen=True, slots=True)
class GroupingKernel(GroupedKernel):
    """GroupedKernel that also quantises float32 weights, to integers of `bits`: 4, which have
    offsets, or 8. Weights that are stored in groups of so many bits at most stay as they are.

    A group with a number that is not finite gives a column of NaN.
    """

    group_into: Callable[..., None]
    bits: int

    @property
    def is_exact(self) -> bool:
        return False

    def takes(self, weight: Tensor) -> bool:
        """Return whether `weight` is a float32 matrix whose columns are whole groups."""
        if weight.dtype != torch.float32 or weight.dim() != 2:
            return False
        return self._form(weight.shape[1]) is not None

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a float32 weight."""
        form = self._form(weight.num_columns)
        if weight.form is not None and weight.form.num_bits <= self.most_bits:
            form = weight.form
        return GroupedKernel.planned_bytes(self, weight._replace(form=form))

    def pack(self, weight: Tensor) -> PackedWeight:
        """Quantise and pack a weight [N, K] that the kernel takes; `weight` stays as it is."""
        check(weight, weight.shape[1], torch.float32)
        form = self._form(weight.shape[1])
        if form is None:
            raise ValueError(f"{weight.shape[1]} columns: must be a multiple of {GROUP_SIZES[-1]}")
        return self.pack_shards(form, weight.shape, self._shards(weight.contiguous(), form))

    def _shards(self, weight: Tensor, form: GroupForm) -> Iterator[GroupedWeight]:
        for first, count in shard_starts(weight.shape):
            yield self._grouped(weight[first : first + count], form)

    def _grouped(self, rows: Tensor, form: GroupForm) -> GroupedWeight:
        num_rows, num_columns = rows.shape
        numbers = torch.empty(rows.shape, dtype=torch.int8)
        scales = torch.empty(num_rows, num_columns // form.group_size, dtype=torch.float16)
        offsets = torch.empty_like(scales) if form.has_offsets else None
        self.group_into(
            rows.data_ptr(),
            num_rows,
            num_columns,
            form.group_size,
            form.num_bits,
            numbers.data_ptr(),
            scales.data_ptr(),
            None if offsets is None else offsets.data_ptr(),
            torch.get_num_threads(),
        )
        return GroupedWeight(numbers, scales, offsets, form.num_bits)

    def _form(self, num_columns: int) -> GroupForm | None:
        size = next((size for size in GROUP_SIZES if num_columns % size == 0), None)
        return None if size is None else GroupForm(size, self.bits, 2, self.bits == 4)


def bind_grouping(library: Library, bits: int) -> GroupingKernel:
    """Return the kernel for integers of 4 or 8 bits."""
    kernel = partial(GroupingKernel, library, most_bits=bits, bits=bits)
    return library.bind(kernel, **FUNCTIONS, group_into="quire_group_weights")
