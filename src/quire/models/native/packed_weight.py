"""A weight as a kernel packs it, and what all linear kernels do alike: they check their operands,
multiply, look rows up, and join packed weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [num_rows, num_columns] as its kernel packs it: panels of rows, one after the other.

    packed: a tensor of W's dtype, whatever its bytes hold, and of four dimensions, so that no code
        takes it for a matrix.
    outliers: the columns that are packed in more bits than the others, as the kernel reads them.
    """

    packed: Tensor
    num_rows: int
    num_columns: int
    outliers: Tensor | None = field(default=None, kw_only=True)

    @property
    def plain_bytes(self) -> int:
        """The bytes of W before it was packed."""
        return self.num_rows * self.num_columns * self.packed.itemsize


def join(
    weights: Sequence[PackedWeight], panel_rows: int, *, before: Sequence[Tensor] = ()
) -> PackedWeight:
    """Return one weight of all panels of `weights`, which become its views; `before` begins it."""
    whole = torch.cat([*before, *(weight.packed for weight in weights)])
    start = sum(map(len, before))
    for weight in weights:
        weight.packed.data = whole[start : start + len(weight.packed)]
        start += len(weight.packed)
    num_panels = sum(-(-weight.num_rows // panel_rows) for weight in weights[:-1])
    num_rows = num_panels * panel_rows + weights[-1].num_rows
    first = weights[0]
    return PackedWeight(whole, num_rows, first.num_columns, outliers=first.outliers)


def product(
    multiply: Callable[..., None],
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    *more: int,
) -> Tensor:
    """Return x [..., K] W^T + bias, all of the dtype of `packed`.

    `more` are addresses that `multiply` takes after that of the product. Raises ValueError for
    other dtypes, devices or shapes.
    """
    dtype = weight.packed.dtype
    check(x, weight.num_columns, dtype)
    if bias is not None:
        check(bias, weight.num_rows, dtype)
    rows = x.contiguous()
    out = x.new_empty(*x.shape[:-1], weight.num_rows)
    multiply(
        rows.data_ptr(),
        rows.numel() // weight.num_columns,
        weight.packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        weight.num_rows,
        weight.num_columns,
        out.data_ptr(),
        *more,
        torch.get_num_threads(),
    )
    return out


def look_up(copy_rows: Callable[..., bool], indices: Tensor, weight: PackedWeight) -> Tensor:
    """Return rows of W: [..., K], of the dtype of `packed`. Raises IndexError."""
    rows = indices.to(torch.int64).contiguous()
    out = torch.empty(*indices.shape, weight.num_columns, dtype=weight.packed.dtype)
    if not copy_rows(
        rows.data_ptr(),
        rows.numel(),
        weight.packed.data_ptr(),
        weight.num_rows,
        weight.num_columns,
        out.data_ptr(),
    ):
        raise IndexError(f"an index is not within the {weight.num_rows} rows")
    return out


def check(numbers: Tensor, size: int, dtype: torch.dtype) -> None:
    """Raise ValueError unless `numbers` is [..., size] of `dtype` on the CPU, and not empty."""
    if numbers.dtype != dtype or numbers.device.type != "cpu":
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"{numbers.dtype} on {numbers.device}: must be {name} on the CPU")
    if numbers.shape[-1] != size or size == 0:
        raise ValueError(f"the shape is {tuple(numbers.shape)}, its last must be {size} and not 0")
