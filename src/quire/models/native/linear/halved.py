"""The functions of halved.cpp over tensors: y = x W^T + bias in float32, where the numbers of W are
bfloat16 ones and are kept as that, packed once."""

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
class HalvedKernel:
    """Runs on as many threads as torch does. All numbers are float32, on the CPU; raises ValueError
    for others, and where shapes do not fit."""

    fits: Callable[..., bool]
    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def is_exact(self) -> bool:
        return True

    def takes(self, weight: Tensor) -> bool:
        """Those whose numbers bfloat16 holds: of a checkpoint stored in it."""
        if weight.dtype != torch.float32 or weight.dim() != 2:
            return False
        return self.fits(weight.contiguous().data_ptr(), weight.numel())

    def pack(self, weight: Tensor) -> PackedWeight:
        """`weight` [N, K], which it takes, is left as it is. `packed` is [panels, K, 1,
        PANEL_ROWS / 2], each float two halves."""
        num_rows, num_columns = weight.shape
        check(weight, num_columns, torch.float32)
        panels = -(-num_rows // PANEL_ROWS)
        packed = torch.empty(panels, num_columns, 1, PANEL_ROWS // 2)
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
        """The same numbers as were packed."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[..., K] to [..., N]. `bias` [N] is contiguous."""
        return product(self.multiply, x, weight, bias)

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Rows of W, as an embedding looks them up: [..., K]. Raises IndexError."""
        return looked_up(self.copy_rows, indices, weight)


ADDRESS, COUNT, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_bool
SIGNATURES: Signatures = {
    "quire_halved_fits": (FLAG, (ADDRESS, COUNT)),
    "quire_halved_pack": (None, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_halved": (None, (ADDRESS, COUNT, ADDRESS, ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_halved_rows": (FLAG, (ADDRESS, COUNT, ADDRESS, COUNT, COUNT, ADDRESS)),
}


def bind_halved(library: ctypes.CDLL, isa: str) -> HalvedKernel | None:
    """None: the library has none."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else HalvedKernel(*functions)
