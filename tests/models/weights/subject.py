"""A kernel of linear layers, as its suite asks it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.models.native.packed_weight import PackedWeight
from quire.models.weights.lazy_weight import OpenedWeight
from quire.models.weights.weight_kernel import (
    InputKernel,
    StoredWeightKernel,
    WeightKernel,
    WeightOutline,
)
from tests.models.rounding import Exact, in_dtype
from tests.models.weights.formats import Format, Weight, numbers, spread


class Operands(NamedTuple):
    x: Tensor
    weight: Weight
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel of a format."""

    kernel: WeightKernel
    format: Format

    def draw(self, data: st.DataObject, *, is_odd: bool = False) -> Operands:
        """Return operands of any shape; with `is_odd` the weight may be of any bits."""
        m, n, k = data.draw(self.format.shapes)
        dtype, seed = data.draw(st.sampled_from(self.format.dtypes)), data.draw(st.integers(0, 999))
        weight = self.made(n, k, dtype, seed, is_odd=is_odd)
        if isinstance(weight, Tensor):
            weight *= 10.0 ** data.draw(st.sampled_from(self.format.exponents))
        bias = numbers(n, dtype=dtype, seed=seed + 1) if data.draw(st.booleans()) else None
        return Operands(numbers(m, weight.shape[1], dtype=dtype, seed=seed + 2), weight, bias)

    def made(
        self,
        n: int,
        k: int,
        dtype: torch.dtype | None = None,
        seed: int = 1,
        *,
        is_odd: bool = False,
    ) -> Weight:
        """Return a random weight that is taken."""
        make = self.format.odd if is_odd and self.format.odd else self.format.made
        return make(n, k, dtype or self.format.dtypes[0], seed)

    def x(self, m: int, weight: Weight, seed: int = 0) -> Tensor:
        """Return [m, k] random numbers for a weight [n, k]."""
        return numbers(m, weight.shape[1], dtype=weight.dtype, seed=seed)

    def pack(self, weight: Weight) -> PackedWeight:
        if isinstance(weight, OpenedWeight):
            assert isinstance(self.kernel, StoredWeightKernel)
            assert self.kernel.takes_stored(weight)
            return self.kernel.pack_stored(weight)
        assert self.kernel.takes(weight)
        if self.format.has_outliers:
            assert isinstance(self.kernel, InputKernel)
            return self.kernel.pack_for(weight, spread(weight.shape[1]))
        return self.kernel.pack(weight)

    def unpacked(self, weight: Weight) -> Tensor:
        """Return the numbers that a weight is packed as, in float32 where its dtype does not change
        them."""
        widened = (
            weight.float() if self.format.quantises_x and isinstance(weight, Tensor) else weight
        )
        return self.kernel.unpack(self.pack(widened))

    def exact(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Exact:
        """Return the product of what is packed, and how far off rounding may be."""
        value, sizes = self.format.terms(x, weight, self.unpacked(weight))
        if bias is not None:
            value, sizes = value + bias.double(), sizes + bias.double().abs()
        return in_dtype(Exact(value, self.format.error(x, sizes)), x.dtype)

    def values(self, weight: Weight) -> Tensor:
        """Return its numbers."""
        return weight.values() if isinstance(weight, OpenedWeight) else weight

    def planned_bytes(self, weight: Weight) -> int | None:
        form = weight.weight.form if isinstance(weight, OpenedWeight) else None
        num_rows, num_columns = weight.shape
        outline = WeightOutline(num_rows, num_columns, weight.dtype, torch.bfloat16, form)
        return self.kernel.planned_bytes(outline)
