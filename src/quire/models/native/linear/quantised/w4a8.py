"""The functions of w4a8.cpp: y = x W^T + bias over a weight packed once in four bits, with a scale
for each row, a step and a begin for each 32 of its columns. x is quantised to int8 in each call, as
for w8a8."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel, address


@dataclass(frozen=True, slots=True)
class W4A8Kernel(W8A8Kernel):
    """W8A8Kernel over weights of four bits: over the same numbers the result is the same.

    `pack_for` weighs the squared error of a column by the mean square of x there, which makes the
    error of y the smallest where columns of x do not depend on each other (Hassibi and Stork,
    Optimal Brain Surgeon, 1993).
    """

    lines_of: Callable[[int], int]

    @property
    def num_bits(self) -> int:
        return 4

    def panel_lines(self, num_columns: int) -> int:
        """Return the lines of 64 bytes that each panel takes."""
        return self.lines_of(num_columns)

    def _fill(
        self, packed: Tensor, rows: Tensor, outliers: Tensor | None, sizes: Tensor | None
    ) -> None:
        importance = None if sizes is None else _importance(sizes)
        self.pack_into(
            rows.data_ptr(),
            rows.dtype == torch.bfloat16,
            address(outliers),
            address(importance),
            *rows.shape,
            packed.data_ptr(),
            torch.get_num_threads(),
        )


def _importance(sizes: Tensor) -> Tensor | None:
    """Return the mean squares of columns, float32 [K], of which the mean is 1; None where they are
    not finite or all 0."""
    squares = sizes.double().square()
    importance = (squares / squares.mean()).float().contiguous()
    return importance if bool(importance.isfinite().all()) else None


def bind_w4a8(library: Library) -> W4A8Kernel | None:
    """Return the kernel, or None if the instruction set has no product of int8."""
    if not library.has("quire_w4a8"):
        return None
    return library.bind(
        W4A8Kernel,
        pack_into="quire_w4a8_pack",
        multiply="quire_w4a8",
        copy_rows="quire_w4a8_rows",
        scratch_bytes="quire_w8a8_scratch",
        lines_of="quire_w4a8_lines",
    )
