"""The functions of w4a8.cpp: y = x W^T + bias over a weight packed once in four bits, with a scale
for each row, a step and a begin for each 32 of its columns. x is quantised to int8 in each call, as
for w8a8."""

from collections.abc import Callable
from dataclasses import dataclass

from quire.models.native.library import Library
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel


@dataclass(frozen=True, slots=True)
class W4A8Kernel(W8A8Kernel):
    """W8A8Kernel over weights of four bits: over the same numbers the result is the same."""

    lines_of: Callable[[int], int]

    @property
    def num_bits(self) -> int:
        return 4

    def panel_lines(self, num_columns: int) -> int:
        """Return the lines of 64 bytes that each panel takes."""
        return self.lines_of(num_columns)


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
