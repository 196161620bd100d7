"""What loading asks of a kernel for linear layers, whatever it makes of their weights."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from quire.models.native.linear.linear import PackedWeight


class WeightKernel(Protocol):
    @property
    def is_exact(self) -> bool:
        """Is what is packed the same numbers?"""

    def takes(self, weight: Tensor) -> bool:
        """Does it pack this one? x, bias and y are of its dtype."""

    def pack(self, weight: Tensor) -> PackedWeight: ...

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """One weight of all their rows, of which they become views. None: not possible, since rows
        do not fill their panels."""

    def unpack(self, weight: PackedWeight) -> Tensor:
        """[N, K], of the dtype that was packed."""

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[..., K] to [..., N]: x W^T + bias. No row of it depends on those beside."""

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Rows of W: [..., K]. Raises IndexError."""
