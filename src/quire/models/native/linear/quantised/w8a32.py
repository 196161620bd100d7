"""The functions of w8a32.cpp: y = x W^T + bias in float32 over a weight packed once as int8 with a
scale for each row. The kernel widens the numbers of W to float32 as it multiplies."""

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
class W8A32Kernel:
    """Runs on as many threads as torch does. All numbers are float32, on the CPU; raises ValueError
    for others, and where shapes do not fit.

    A row of W with a number that is not finite gives a column of NaN. Rows that nowhere reach
    2**-100 count as zeros.
    """

    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def num_bits(self) -> int:
        return 8

    @property
    def panel_rows(self) -> int:
        return PANEL_ROWS

    @property
    def is_exact(self) -> bool:
        return False

    def takes(self, weight: Tensor) -> bool:
        """Return whether `weight` is float32."""
        return weight.dtype == torch.float32

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a float32 weight."""
        if weight.dtype != torch.float32:
            return None
        num_panels = -(-weight.num_rows // PANEL_ROWS)
        return num_panels * (4 + weight.num_columns) * PANEL_ROWS

    def pack(self, weight: Tensor) -> PackedWeight:
        """Quantise and pack a weight [N, K]; `weight` stays as it is.

        `packed` is [panels, 4 + K, 1, PANEL_ROWS / 4]: a panel begins with PANEL_ROWS scales, and
        each further float32 holds four int8 numbers.
        """
        num_rows, num_columns = weight.shape
        check(weight, num_columns, torch.float32)
        panels = -(-num_rows // PANEL_ROWS)
        packed = torch.empty(panels, 4 + num_columns, 1, PANEL_ROWS // 4)
        rows = weight.contiguous()
        self.pack_into(
            rows.data_ptr(), num_rows, num_columns, packed.data_ptr(), torch.get_num_threads()
        )
        return PackedWeight(packed, num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their panels, of which they become views."""
        return join(weights, PANEL_ROWS)

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K] to within half a step, a 127th of the largest number in its row."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. `bias` [N] is contiguous."""
        return product(self.multiply, x, weight, bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W as `unpack` gives them: [..., K]. Raises IndexError."""
        return look_up(self.copy_rows, indices, weight)


def bind_w8a32(library: Library) -> W8A32Kernel:
    """Return the kernel."""
    return library.bind(
        W8A32Kernel,
        pack_into="quire_w8a32_pack",
        multiply="quire_w8a32",
        copy_rows="quire_w8a32_rows",
    )
