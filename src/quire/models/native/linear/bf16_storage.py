"""The functions of bf16_storage.cpp: y = x W^T + bias in float32 over a weight whose numbers
bfloat16 holds. They are packed once and stored as bfloat16."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.native.packed_weight import (
    PackedWeight,
    check,
    join,
    look_up,
    product,
)
from quire.models.weights.weight_kernel import WeightOutline

PANEL_ROWS = 32


@dataclass(frozen=True, slots=True)
class Bf16StorageKernel:
    """Runs on as many threads as torch does. All numbers are float32, on the CPU; raises ValueError
    for others, and where shapes do not fit."""

    fits: Callable[..., bool]
    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def num_bits(self) -> int:
        """16: no number is quantised."""
        return 16

    @property
    def panel_rows(self) -> int:
        return PANEL_ROWS

    @property
    def is_exact(self) -> bool:
        return True

    def takes(self, weight: Tensor) -> bool:
        """Return whether `weight` is float32 and bfloat16 holds its numbers."""
        if weight.dtype != torch.float32 or weight.dim() != 2:
            return False
        rows = weight.contiguous()  # lives until it is read
        return self.fits(rows.data_ptr(), rows.numel())

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a float32 weight that was stored in bfloat16."""
        if weight.dtype != torch.float32 or weight.stored != torch.bfloat16:
            return None
        num_panels = -(-weight.num_rows // PANEL_ROWS)
        return num_panels * PANEL_ROWS * weight.num_columns * torch.bfloat16.itemsize

    def pack(self, weight: Tensor) -> PackedWeight:
        """Pack a weight [N, K] that the kernel takes; `weight` stays as it is.

        `packed` is [panels, K, 1, PANEL_ROWS / 2]: each float32 holds two bfloat16 numbers.
        """
        num_rows, num_columns = weight.shape
        check(weight, num_columns, torch.float32)
        panels = -(-num_rows // PANEL_ROWS)
        packed = torch.empty(panels, num_columns, 1, PANEL_ROWS // 2)
        rows = weight.contiguous()
        self.pack_into(
            rows.data_ptr(), num_rows, num_columns, packed.data_ptr(), torch.get_num_threads()
        )
        return PackedWeight(packed, num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their panels, of which they become views."""
        return join(weights, PANEL_ROWS)

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], the same numbers as were packed."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. `bias` [N] is contiguous."""
        return product(self.multiply, x, weight, bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W, as an embedding looks them up: [..., K]. Raises IndexError."""
        return look_up(self.copy_rows, indices, weight)


def bind_bf16_storage(library: Library) -> Bf16StorageKernel:
    """Return the kernel."""
    return library.bind(
        Bf16StorageKernel,
        fits="quire_bf16_storage_fits",
        pack_into="quire_bf16_storage_pack",
        multiply="quire_bf16_storage",
        copy_rows="quire_bf16_storage_rows",
    )
