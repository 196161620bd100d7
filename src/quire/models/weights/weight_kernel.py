"""The interface of kernels for linear layers, whatever form they keep weights in."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.models.native.packed_weight import PackedWeight
from quire.models.weights.group_form import GroupForm
from quire.models.weights.lazy_weight import StoredWeight


class WeightOutline(NamedTuple):
    """A weight [N, K] whose numbers are not known; `dtype` is the compute dtype, `stored` the
    checkpoint's, and `form` the form of a weight stored in groups."""

    num_rows: int
    num_columns: int
    dtype: torch.dtype
    stored: torch.dtype | None
    form: GroupForm | None = None


class WeightKernel(Protocol):
    """Packs weights W [N, K] of linear layers, and multiplies by them."""

    @property
    def num_bits(self) -> int:
        """The bits of a quantized value; 16 if a packed weight has the same values, 0 if each
        packed weight has its own form."""

    @property
    def panel_rows(self) -> int:
        """The rows of W that are packed together: the output of a weight that is joined to others
        begins at a multiple."""

    @property
    def is_exact(self) -> bool:
        """Whether a packed weight holds the same numbers, not quantised ones."""

    def takes(self, weight: Tensor) -> bool:
        """Return whether it packs this weight. x, bias and y are then of the weight's dtype."""

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a weight once it is packed, or None if it is not taken. Where they
        depend on its numbers, these are taken to be as even as a trained model's."""

    def pack(self, weight: Tensor) -> PackedWeight:
        """Return a weight [N, K] in the kernel's form; `weight` stays as it is."""
        ...

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """Join weights of equal K into one of all their panels, of which they become views.

        The rows that one but the last leaves of its last panel are rows of the joined weight too,
        which are used for nothing. Returns None if they cannot be multiplied at once.
        """
        ...

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], of the dtype that was packed."""

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. No row depends on the other rows."""

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W: [..., K]. Raises IndexError for an index that is not below N."""


@runtime_checkable
class InputKernel(WeightKernel, Protocol):
    """Packs weights for the activations that they are multiplied by."""

    def pack_for(self, weight: Tensor, sizes: Tensor) -> PackedWeight:
        """Return a weight [N, K] in the kernel's form; `weight` stays as it is. `sizes` [K] float32
        are the root mean squares of the columns of x."""
        ...


@runtime_checkable
class StoredWeightKernel(WeightKernel, Protocol):
    """Packs weights as a file stores them too, without their numbers."""

    def takes_stored(self, stored: StoredWeight) -> bool:
        """Return whether it packs this weight. x, bias and y are then of the weight's dtype."""

    def pack_stored(self, stored: StoredWeight) -> PackedWeight:
        """Return a weight [N, K] in the kernel's form; `stored` stays as it is."""
        ...
