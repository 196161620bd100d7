"""The functions of bytes.cpp over tensors: y = x W^T + bias in float32, W packed once as bytes with
a scale for each row, which are widened as they are multiplied."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.binding import Signatures, bind
from quire.models.native.linear.linear import (
    PackedWeight,
    check,
    fill_panels,
    joined,
    looked_up,
    product,
)

PANEL_ROWS = 32


@dataclass(frozen=True, slots=True)
class BytesKernel:
    """Runs on as many threads as torch does. All numbers are float32, on the CPU; raises ValueError
    for others, and where shapes do not fit.

    A row of W with a number that is not finite gives a column of NaN. Rows that nowhere reach
    2**-100 count as zeros.
    """

    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def is_exact(self) -> bool:
        return False

    def takes(self, weight: Tensor) -> bool:
        """Those in float32."""
        return weight.dtype == torch.float32

    def pack(self, weight: Tensor) -> PackedWeight:
        """`weight` [N, K] is left as it is. `packed` is [panels, 4 + K, 1, PANEL_ROWS / 4], each
        float four bytes but for a panel's first PANEL_ROWS, its scales."""
        num_rows, num_columns = weight.shape
        check(weight, num_columns, torch.float32)
        panels = -(-num_rows // PANEL_ROWS)
        packed = torch.empty(panels, 4 + num_columns, 1, PANEL_ROWS // 4)
        rows = weight.contiguous()
        self.pack_into(
            rows.data_ptr(), num_rows, num_columns, packed.data_ptr(), torch.get_num_threads()
        )
        return PackedWeight(packed, num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """One weight of all their rows, of which they become views. None: not possible, since rows
        do not fill their panels."""
        return joined(weights) if fill_panels(weights, PANEL_ROWS) else None

    def unpack(self, weight: PackedWeight) -> Tensor:
        """About what was packed: within half a step, a 127th of the largest number in the row."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[..., K] to [..., N]. `bias` [N] is contiguous."""
        return product(self.multiply, x, weight, bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Rows of W as `unpack` gives them, as an embedding looks them up: [..., K]. Raises
        IndexError."""
        return looked_up(self.copy_rows, indices, weight)


ADDRESS, COUNT, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
SIGNATURES: Signatures = {
    "quire_bytes_pack": (None, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_bytes": (None, (ADDRESS, COUNT, ADDRESS, ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_bytes_rows": (FLAG, (ADDRESS, COUNT, ADDRESS, COUNT, COUNT, ADDRESS)),
}


def bind_bytes(library: ctypes.CDLL, isa: str) -> BytesKernel | None:
    """None: the library has none."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else BytesKernel(*functions)
