"""The functions of find_candidates.cpp and candidate_product.cpp: candidate pruning for y = x W^T
in bfloat16, of which only what can be the largest of its row is computed. W is packed in 12 bits,
and an int8 copy of it finds the candidates."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.native.linear.compressed_bf16 import LINE_BYTES, PANEL_ROWS
from quire.models.native.linear.quantised.w8a8 import PANEL_ROWS as BYTE_PANEL_ROWS
from quire.models.native.linear.quantised.w8a8 import STEP_COLUMNS
from quire.models.native.packed_weight import PackedWeight

BOUND_BYTES = 8
"""Bytes for each row of W: two float32."""
MASK_ROWS = 64


@dataclass(frozen=True, slots=True)
class CandidateWeight:
    """A weight W [N, K] and its int8 copy, by which candidate rows are found.

    compressed: W as CompressedBf16Kernel packs it.
    int8: the int8 copy, uint8 [ceil(N / 16), 1 + ceil(K / 4), 64]: of each panel of 16 rows one
        cache line of scales, then the numbers.
    bounds: two float32 for each row, which bound the error of its int8 product.
    """

    compressed: PackedWeight
    int8: Tensor
    bounds: Tensor

    @property
    def num_panels(self) -> int:
        """The number of panels of `compressed`."""
        return -(-self.compressed.num_rows // PANEL_ROWS)


def _shapes(num_rows: int, num_columns: int) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Return the shapes of the int8 copy and of the bounds."""
    panels, steps = -(-num_rows // BYTE_PANEL_ROWS), -(-num_columns // STEP_COLUMNS)
    return (panels, 1 + steps, LINE_BYTES), (panels, BOUND_BYTES * BYTE_PANEL_ROWS)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The panels of W that may hold the largest entry of a row of y.

    panels: int64 [ceil(M / 64), ceil(N / 32)], one bit for each of 64 rows of x.
    count: the number of bits that are set.
    """

    panels: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class CandidateKernel:
    """Runs on as many threads as torch does. x is bfloat16 [M, K], contiguous and on the CPU."""

    library: Library
    pack_scratch: Callable[..., int]
    pack_into: Callable[..., bool]
    scratch_bytes: Callable[..., int]
    find_into: Callable[..., int]
    product_scratch: Callable[[int, int], int]
    multiply_candidates: Callable[..., None]

    def pack(self, weight: PackedWeight) -> CandidateWeight | None:
        """Make the int8 copy of W; return None if a number of W is not finite, or the norm of a row
        is 1e15 or more."""
        num_rows, num_columns = weight.num_rows, weight.num_columns
        num_threads = torch.get_num_threads()
        shape, bounds_shape = _shapes(num_rows, num_columns)
        packed = torch.empty(shape, dtype=torch.uint8)
        bounds = torch.empty(bounds_shape, dtype=torch.uint8)
        scratch = _bytes(self.pack_scratch(num_columns, num_threads))
        is_packed = self.pack_into(
            weight.packed.data_ptr(),
            num_rows,
            num_columns,
            packed.data_ptr(),
            bounds.data_ptr(),
            scratch.data_ptr(),
            num_threads,
        )
        return CandidateWeight(weight, packed, bounds) if is_packed else None

    def copy_bytes(self, num_rows: int, num_columns: int) -> int:
        """Return the bytes that `pack` adds to a weight [num_rows, num_columns]."""
        return sum(map(math.prod, _shapes(num_rows, num_columns)))

    def working_bytes(self, weight_shape: tuple[int, int], num_rows: int) -> int:
        """Return an upper bound of the bytes that both other methods allocate beside y, for
        `num_rows` rows of x and a weight [N, K]."""
        (n, k), num_threads = weight_shape, torch.get_num_threads()
        num_masks = -(-num_rows // MASK_ROWS) * -(-n // PANEL_ROWS)
        call = self.library.struct("FindCandidates")(m=num_rows, n=n, k=k, num_threads=num_threads)
        return int(self.scratch_bytes(call)) + self.product_scratch(k, num_threads) + 8 * num_masks

    def find_candidates(self, x: Tensor, weight: CandidateWeight) -> Candidates:
        """Return panels among which is every entry of y that is the largest of its row.

        All panels are candidates for a row of x that is not finite, or whose norm is 1e15 or more
        or nearly zero.
        """
        panels = torch.empty(-(-len(x) // MASK_ROWS), weight.num_panels, dtype=torch.int64)
        call = self.library.struct("FindCandidates")(
            x=x.data_ptr(),
            packed=weight.int8.data_ptr(),
            bounds=weight.bounds.data_ptr(),
            candidates=panels.data_ptr(),
            m=len(x),
            n=weight.compressed.num_rows,
            k=weight.compressed.num_columns,
            num_threads=torch.get_num_threads(),
        )
        scratch = _bytes(self.scratch_bytes(call))
        call.scratch = scratch.data_ptr()
        return Candidates(panels, self.find_into(call))

    def linear(self, x: Tensor, weight: PackedWeight, candidates: Candidates) -> Tensor:
        """Return y [M, N]: in candidate panels as CompressedBf16Kernel computes it, else -inf."""
        out = x.new_empty(len(x), weight.num_rows)
        num_threads = torch.get_num_threads()
        scratch = _bytes(self.product_scratch(weight.num_columns, num_threads))
        self.multiply_candidates(
            self.library.struct("CandidateProduct")(
                x=x.data_ptr(),
                packed=weight.packed.data_ptr(),
                candidates=candidates.panels.data_ptr(),
                y=out.data_ptr(),
                scratch=scratch.data_ptr(),
                m=len(x),
                n=weight.num_rows,
                k=weight.num_columns,
                num_threads=num_threads,
            )
        )
        return out


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8)


def bind_candidates(library: Library) -> CandidateKernel | None:
    """Return the kernel, or None if the instruction set has no product of int8."""
    if not library.has("quire_find_candidates"):
        return None
    return library.bind(
        partial(CandidateKernel, library),
        pack_scratch="quire_candidates_pack_scratch",
        pack_into="quire_candidates_pack",
        scratch_bytes="quire_find_candidates_scratch",
        find_into="quire_find_candidates",
        product_scratch="quire_candidate_product_scratch",
        multiply_candidates="quire_candidate_product",
    )
