"""Weights of linear layers as torch keeps them, of which several may be joined into one product."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import embedding, linear

from quire.models.native.packed_weight import PackedWeight, join
from quire.models.weights.weight_kernel import WeightOutline


@dataclass(frozen=True, slots=True)
class PlainWeights:
    """A weight kernel that multiplies by torch's own products, on any device. Joined weights of one
    input are one product instead of several small ones."""

    @property
    def num_bits(self) -> int:
        """16: no number is quantised."""
        return 16

    @property
    def panel_rows(self) -> int:
        """1: each row is by itself."""
        return 1

    @property
    def is_exact(self) -> bool:
        """True: a weight holds the same numbers."""
        return True

    def takes(self, weight: Tensor) -> bool:
        """Return whether it is a matrix of floating-point numbers."""
        return weight.dim() == 2 and weight.is_floating_point()

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of the weight in the dtype that is computed in."""
        return weight.num_rows * weight.num_columns * weight.dtype.itemsize

    def pack(self, weight: Tensor) -> PackedWeight:
        """Return a view of `weight`, whose panels are single rows."""
        num_rows, num_columns = weight.shape
        rows = weight.detach().contiguous()
        return PackedWeight(rows.view(num_rows, 1, 1, num_columns), num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their rows, of which they become views."""
        return join(weights, self.panel_rows)

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], which shares its memory with `weight`."""
        return _matrix(weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]."""
        return linear(x, _matrix(weight), bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W: [..., K]. An index must be below N: a GPU does not tell in time."""
        return embedding(indices, _matrix(weight))


def _matrix(weight: PackedWeight) -> Tensor:
    packed: Tensor = weight.packed
    return packed.view(weight.num_rows, weight.num_columns)
