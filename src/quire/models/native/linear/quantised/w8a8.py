"""The functions of w8a8.cpp: y = x W^T + bias over a weight packed once as int8 with a scale for
each row. x is quantised to int8 in each call, with a scale for each row and 256 columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.native.packed_weight import PackedWeight, join
from quire.models.weights.weight_kernel import WeightOutline

PANEL_ROWS = 16
STEP_COLUMNS = 4
NUM_OUTLIERS = 16
OUTLIER_LINES = 8
MIN_COLUMNS = 256
"""Columns of a weight that has outliers: these would be a large share of fewer."""
WORD_BITS = 32
DTYPES = frozenset({torch.bfloat16, torch.float32})


@dataclass(frozen=True, slots=True)
class W8A8Kernel:
    """Runs on as many threads as torch does. x, W, bias and y are of one of DTYPES, on the CPU;
    raises ValueError for others, and where shapes do not fit.

    A row of x with a number that is not finite gives a row of NaN, and such a row of W a column;
    all others are as without it. Groups and rows that nowhere reach 2**-100 count as zeros.
    """

    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]
    scratch_bytes: Callable[[int], int]

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
        """Return whether the weight is of one of DTYPES."""
        return weight.dtype in DTYPES

    def planned_bytes(self, weight: WeightOutline) -> int | None:
        """Return the bytes of a weight of one of DTYPES."""
        if weight.dtype not in DTYPES:
            return None
        lines = self.panel_lines(weight.num_columns)
        if weight.num_columns >= MIN_COLUMNS:
            lines += OUTLIER_LINES
        return -(-weight.num_rows // PANEL_ROWS) * lines * PANEL_ROWS * STEP_COLUMNS

    def panel_lines(self, num_columns: int) -> int:
        """Return the lines of PANEL_ROWS x STEP_COLUMNS bytes that a panel without outliers
        takes."""
        return 1 + -(-num_columns // STEP_COLUMNS)

    def pack(self, weight: Tensor) -> PackedWeight:
        """Quantise and pack a weight [N, K]; `weight` stays as it is.

        `packed` is of the weight's dtype, so that a module still tells what it computes in, but
        holds [panels, lines, PANEL_ROWS, STEP_COLUMNS] bytes: a panel's first line is its scales.
        """
        return self._packed(weight, None, None)

    def pack_for(self, weight: Tensor, sizes: Tensor) -> PackedWeight:
        """Quantise and pack a weight [N, K] as `pack` does, but for the NUM_OUTLIERS columns whose
        `sizes` [K] are the largest: there x and W are rounded to bfloat16 (LLM.int8(), Dettmers et
        al., 2022). Weights of fewer than MIN_COLUMNS have none."""
        outliers = _outliers(sizes) if len(sizes) >= MIN_COLUMNS else None
        return self._packed(weight, outliers, sizes)

    def _packed(
        self, weight: Tensor, outliers: Tensor | None, sizes: Tensor | None
    ) -> PackedWeight:
        num_rows, num_columns = weight.shape
        _check(weight, num_columns, weight.dtype)
        panels, lines = -(-num_rows // PANEL_ROWS), self.panel_lines(num_columns)
        if outliers is not None:
            lines += OUTLIER_LINES
        packed = torch.empty(panels, lines, PANEL_ROWS, STEP_COLUMNS, dtype=torch.uint8)
        self._fill(packed, weight.contiguous(), outliers, sizes)
        return PackedWeight(packed.view(weight.dtype), num_rows, num_columns, outliers=outliers)

    def _fill(
        self, packed: Tensor, rows: Tensor, outliers: Tensor | None, sizes: Tensor | None
    ) -> None:
        """Write rows [N, K] to `packed`; `sizes` [K] are those of x, if they are known."""
        self.pack_into(
            rows.data_ptr(),
            rows.dtype == torch.bfloat16,
            address(outliers),
            *rows.shape,
            packed.data_ptr(),
            torch.get_num_threads(),
        )

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """Join weights of equal K into one of all their panels, of which they become views.

        Returns None if their outliers are not the same.
        """
        return join(weights, PANEL_ROWS) if _have_same_outliers(weights) else None

    def unpack(self, weight: PackedWeight) -> Tensor:
        """Return W [N, K] to within half a step, a 127th of the largest number in its row."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] to [..., N]. `bias` [N] is contiguous."""
        _check(x, weight.num_columns, weight.packed.dtype)
        if bias is not None:
            _check(bias, weight.num_rows, weight.packed.dtype)
        rows = x.contiguous()
        num_rows = rows.numel() // weight.num_columns
        scratch_bytes = num_rows * self.scratch_bytes(weight.num_columns)
        scratch = torch.empty(scratch_bytes, dtype=torch.uint8)
        out = x.new_empty(*x.shape[:-1], weight.num_rows)
        self.multiply(
            rows.data_ptr(),
            x.dtype == torch.bfloat16,
            num_rows,
            weight.packed.data_ptr(),
            address(weight.outliers),
            address(bias),
            weight.num_rows,
            weight.num_columns,
            out.data_ptr(),
            scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Return rows of W as `unpack` gives them: [..., K]. Raises IndexError."""
        wanted = indices.to(torch.int64).contiguous()
        out = torch.empty(*indices.shape, weight.num_columns, dtype=weight.packed.dtype)
        if not self.copy_rows(
            wanted.data_ptr(),
            wanted.numel(),
            weight.packed.data_ptr(),
            address(weight.outliers),
            out.dtype == torch.bfloat16,
            weight.num_rows,
            weight.num_columns,
            out.data_ptr(),
        ):
            raise IndexError(f"an index is not within the {weight.num_rows} rows")
        return out


def _outliers(sizes: Tensor) -> Tensor:
    """Return int32 [NUM_OUTLIERS + ceil(K / WORD_BITS)]: the columns of the largest sizes, rising,
    then a bit for each column that is none of them."""
    columns = sizes.float().topk(NUM_OUTLIERS).indices.sort().values
    bits = torch.zeros(-(-len(sizes) // WORD_BITS) * WORD_BITS, dtype=torch.int64)
    bits[: len(sizes)] = 1
    bits[columns] = 0
    words = (bits.view(-1, WORD_BITS) << torch.arange(WORD_BITS)).sum(1)
    return torch.cat([columns, words]).to(torch.int32)


def _have_same_outliers(weights: Sequence[PackedWeight]) -> bool:
    first = weights[0].outliers
    if first is None:
        return all(weight.outliers is None for weight in weights)
    return all(
        weight.outliers is not None and torch.equal(weight.outliers, first) for weight in weights
    )


def address(tensor: Tensor | None) -> int | None:
    """Return the address of a tensor's numbers, None for none."""
    return None if tensor is None else tensor.data_ptr()


def _check(numbers: Tensor, width: int, dtype: torch.dtype) -> None:
    if numbers.dtype != dtype or dtype not in DTYPES or numbers.device.type != "cpu":
        raise ValueError(
            f"{numbers.dtype} on {numbers.device}: must be as the weight, float32 or bfloat16 on "
            "the CPU"
        )
    if numbers.shape[-1] != width or width == 0:
        raise ValueError(f"the shape is {tuple(numbers.shape)}, its last must be {width} and not 0")


def bind_w8a8(library: Library) -> W8A8Kernel | None:
    """Return the kernel, or None if the instruction set has no product of int8."""
    if not library.has("quire_w8a8"):
        return None
    return library.bind(
        W8A8Kernel,
        pack_into="quire_w8a8_pack",
        multiply="quire_w8a8",
        copy_rows="quire_w8a8_rows",
        scratch_bytes="quire_w8a8_scratch",
    )
