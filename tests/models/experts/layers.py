"""Random layers of experts, what they say in float64, and how far rounding may lead from that."""

from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st
from torch import Tensor

from quire.models.experts.activations import FUNCTIONS, Activation
from tests.models.rounding import Exact, in_dtype, linear_exactly, summed, unit

SLOPE = 1.13
"""The steepest slope of an activation."""
ACTIVATION_ROUNDINGS = 16
"""The roundings of an activation, in parts of its argument: a tanh is several operations."""


@dataclass(frozen=True)
class Product:
    """Rows and a weight for each expert, and pairs of a row and an expert."""

    num_rows: int = 5
    num_experts: int = 4
    top_k: int = 2
    width: int = 20
    size: int = 24
    dtype: torch.dtype = torch.float32
    activation: Activation = Activation.NONE
    is_transposed: bool = False
    is_interleaved: bool = False
    has_bias: bool = False
    num_hit: int = 3
    """Pairs name the first experts alone; one beyond the last is no expert's."""
    seed: int = 0

    @cached_property
    def _random(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random).to(self.dtype)

    @cached_property
    def rows(self) -> Tensor:
        return self._numbers(self.num_rows, self.size)

    @cached_property
    def expert_ids(self) -> Tensor:
        """[num_rows, top_k]. A row may have one expert twice."""
        shape = (self.num_rows, self.top_k)
        return torch.randint(self.num_hit, shape, generator=self._random)

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """One, or gate and up: [experts, width, size]; those that no pair names are NaN."""
        num = 1 if self.activation is Activation.NONE else 2
        shape = (num, self.width) if not self.is_interleaved else (self.width, num)
        whole = self._numbers(self.num_experts, *shape, self.size)
        if self.is_transposed:
            whole = whole.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
        whole[self._unhit] = torch.nan
        return whole.unbind(2 if self.is_interleaved else 1)

    @cached_property
    def biases(self) -> tuple[Tensor, ...]:
        if not self.has_bias:
            return ()
        whole = self._numbers(self.num_experts, len(self.weights), self.width)
        whole[self._unhit] = torch.nan
        return whole.unbind(1)

    @property
    def _unhit(self) -> list[int]:
        return sorted(set(range(self.num_experts)) - set(self.expert_ids.flatten().tolist()))

    def exact(self, row: int, expert: int) -> Exact:
        """[width], for a row and its expert."""
        parts = [
            linear_exactly(
                self.rows[row],
                weight[expert],
                self.biases[index][expert] if self.biases else None,
                num_roundings=self.size + 1,
                dtype=torch.float32,
            )
            for index, weight in enumerate(self.weights)
        ]
        if self.activation is Activation.NONE:
            return in_dtype(parts[0], self.dtype)
        return in_dtype(self._gated(*parts), self.dtype)

    def _gated(self, gate: Exact, up: Exact) -> Exact:
        value = FUNCTIONS[self.activation](gate.value)
        error = SLOPE * gate.error + ACTIVATION_ROUNDINGS * unit(torch.float32) * gate.value.abs()
        sizes = value.abs() + error
        whole = error * (up.value.abs() + up.error) + value.abs() * up.error
        return Exact(value * up.value, whole + summed(1) * sizes * (up.value.abs() + up.error))


products = st.builds(
    Product,
    num_rows=st.one_of(st.integers(1, 4), st.integers(1, 40)),
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    width=st.integers(1, 70),
    size=st.integers(1, 90),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    activation=st.sampled_from(Activation),
    is_transposed=st.booleans(),
    is_interleaved=st.booleans(),
    has_bias=st.booleans(),
    num_hit=st.integers(1, 10),
    seed=st.integers(0, 2**32),
)
