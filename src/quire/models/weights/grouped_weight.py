"""A quantised weight as most published formats have it: small integers, with a scale, and some with
an offset, for each group of columns. It is what the readers of all formats hand over and what the
kernels of quantised weights pack."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.weights.group_form import GroupForm


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """W [..., K] = numbers x scale of their group + offset of their group.

    numbers: [..., K] of int8.
    scales: [..., K / group_size] of float16, or of float32 where these are no halves.
    offsets: the same, or None if all are 0.
    num_bits: numbers are of so many bits, and signed where there are no offsets; 8 where they come
        from a table.
    """

    numbers: Tensor
    scales: Tensor
    offsets: Tensor | None
    num_bits: int

    @property
    def group_size(self) -> int:
        return self.numbers.shape[-1] // self.scales.shape[-1]

    @property
    def form(self) -> GroupForm:
        has_offsets = self.offsets is not None
        return GroupForm(self.group_size, self.num_bits, self.scales.itemsize, has_offsets)

    def with_halves(self) -> "GroupedWeight":
        """Return the same with scales and offsets of float16, if all of them are halves."""
        factors = [each for each in (self.scales, self.offsets) if each is not None]
        halves = [each.half() for each in factors]
        if not all(map(torch.equal, (each.float() for each in halves), factors)):
            return self
        return GroupedWeight(
            self.numbers, halves[0], halves[1] if len(halves) > 1 else None, self.num_bits
        )

    def narrow(self, dim: int, start: int, length: int) -> "GroupedWeight | None":
        """Return a view of a part; None where it begins or ends within a group."""
        group = self.group_size if dim == self.numbers.dim() - 1 else 1
        if start % group or length % group:
            return None
        places = (dim, start // group, length // group)
        return GroupedWeight(
            self.numbers.narrow(dim, start, length),
            self.scales.narrow(*places),
            None if self.offsets is None else self.offsets.narrow(*places),
            self.num_bits,
        )

    def values(self) -> Tensor:
        """Return W in float32: each product is rounded once, and then each sum."""
        numbers = self.numbers.view(*self.scales.shape, self.group_size)
        values = numbers.to(torch.float32) * self.scales[..., None].float()
        if self.offsets is not None:
            values += self.offsets[..., None].float()
        return values.view(self.numbers.shape)


def join_groups(parts: Sequence[GroupedWeight]) -> GroupedWeight:
    """Return rows of weights of one form, one after another."""
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return GroupedWeight(
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(offsets) if offsets else None,
        parts[0].num_bits,
    )
