"""The functions of compressed_bf16.cpp: y = x W^T + bias in bfloat16 over a weight packed once,
without loss, in about 12 bits a number."""

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
LINE_BYTES = 64
STEP_COLUMNS, STEP_LINES = 4, 3
"""A step of columns takes so many cache lines where all of its numbers have codes; each panel has a
line for its head and one for the end of its list."""
OFFSET = 0
"""The index, in a panel's head of int64s, of the panel's offset in bytes from the first head."""


@dataclass(frozen=True, slots=True)
class CompressedBf16Kernel:
    """Runs on as many threads as torch does. All numbers are bfloat16, on the CPU; raises
    ValueError for others, and where shapes do not fit."""

    write_heads: Callable[..., int]
    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]
    scratch_bytes: Callable[..., int]

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
        """Return whether `weight` is bfloat16."""
        return weight.dtype == torch.bfloat16

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a bfloat16 weight of which each step of columns has codes."""
        if weight.dtype != torch.bfloat16:
            return None
        steps = -(-weight.num_columns // STEP_COLUMNS)
        return _num_panels(weight.num_rows) * LINE_BYTES * (2 + STEP_LINES * steps)

    def pack(self, weight: Tensor) -> PackedWeight:
        """Pack a weight [N, K]; `weight` stays as it is.

        `packed` is [cache lines, 1, 1, 32]: a head for each panel, then the panels, as
        compressed_bf16.h has them.
        """
        num_rows, num_columns = weight.shape
        check(weight, num_columns, torch.bfloat16)
        rows, num_threads = weight.contiguous(), torch.get_num_threads()
        given = (rows.data_ptr(), num_rows, num_columns)
        heads = torch.empty(_num_panels(num_rows) * LINE_BYTES, dtype=torch.uint8)
        num_bytes = self.write_heads(*given, heads.data_ptr(), num_threads)
        packed = torch.empty(num_bytes, dtype=torch.uint8)
        packed[: len(heads)] = heads
        self.pack_into(*given, packed.data_ptr(), num_threads)
        lines = packed.view(torch.bfloat16).view(-1, 1, 1, LINE_BYTES // 2)
        return PackedWeight(lines, num_rows, num_columns)

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight:
        """Join weights of equal K into one of all their panels, of which they become views."""
        heads = [
            weight.packed[: _num_panels(weight.num_rows)].view(torch.int64).clone()
            for weight in weights
        ]
        start = sum(map(len, heads))
        for head, weight in zip(heads, weights, strict=True):
            head[..., OFFSET] += start * LINE_BYTES
            start += len(weight.packed)
        return join(weights, PANEL_ROWS, before=[head.view(torch.bfloat16) for head in heads])

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K], the same numbers as were packed."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. `bias` [N] is contiguous."""
        size = self.scratch_bytes(x.numel() // max(x.shape[-1], 1), x.shape[-1])
        scratch = torch.empty(size, dtype=torch.uint8)
        return product(self.multiply, x, weight, bias, scratch.data_ptr())

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W, as an embedding looks them up: [..., K]. Raises IndexError."""
        return look_up(self.copy_rows, indices, weight)


def _num_panels(num_rows: int) -> int:
    return -(-num_rows // PANEL_ROWS)


def bind_compressed_bf16(library: Library) -> CompressedBf16Kernel | None:
    """Return the kernel, or None if the instruction set has no bfloat16 dot product."""
    if not library.has("quire_compressed_bf16"):
        return None
    return library.bind(
        CompressedBf16Kernel,
        write_heads="quire_compressed_bf16_heads",
        pack_into="quire_compressed_bf16_pack",
        multiply="quire_compressed_bf16",
        copy_rows="quire_compressed_bf16_rows",
        scratch_bytes="quire_compressed_bf16_scratch",
    )
