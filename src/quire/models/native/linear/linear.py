"""The functions of linear.cpp over tensors: y = x W^T + bias in bfloat16, W packed once, in 12 bits
for each weight and without loss."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.binding import Signatures, bind

PANEL_ROWS = 32
LINE_BYTES = 64
OFFSET = 0
"""Among the int64s of a panel's head: where the panel begins, in bytes from the first head."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [num_rows, num_columns] as its kernel packs it, panels of rows one after the other.
    `packed` is of W's dtype, whatever it holds, and of four dimensions, never those of a matrix.
    """

    packed: Tensor
    num_rows: int
    num_columns: int

    @property
    def plain_bytes(self) -> int:
        """What W took, of the dtype of `packed`."""
        return self.num_rows * self.num_columns * self.packed.itemsize


def joined(weights: Sequence[PackedWeight], *, before: Sequence[Tensor] = ()) -> PackedWeight:
    """One weight of all their rows, of which they become views. `before`: tensors to begin it."""
    whole = torch.cat([*before, *(weight.packed for weight in weights)])
    start = sum(map(len, before))
    for weight in weights:
        weight.packed.data = whole[start : start + len(weight.packed)]
        start += len(weight.packed)
    num_rows = sum(weight.num_rows for weight in weights)
    return PackedWeight(whole, num_rows, weights[0].num_columns)


def fill_panels(weights: Sequence[PackedWeight], panel_rows: int) -> bool:
    """Does each but the last end where a panel does? Only then can they be joined."""
    return not any(weight.num_rows % panel_rows for weight in weights[:-1])


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """Runs on as many threads as torch does. All numbers are bfloat16, on the CPU; raises
    ValueError for others, and where shapes do not fit."""

    write_heads: Callable[..., int]
    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]
    scratch_bytes: Callable[..., int]

    @property
    def is_exact(self) -> bool:
        return True

    def takes(self, weight: Tensor) -> bool:
        """Those in bfloat16."""
        return weight.dtype == torch.bfloat16

    def pack(self, weight: Tensor) -> PackedWeight:
        """`weight` [N, K] is left as it is. `packed` is [lines, 1, 1, 32]: a head for each panel,
        then the panels, as coded.h says."""
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

    def join(self, weights: Sequence[PackedWeight]) -> PackedWeight | None:
        """One weight of all their rows, of which they become views. None: not possible, since rows
        do not fill their panels."""
        if not fill_panels(weights, PANEL_ROWS):
            return None
        heads = [
            weight.packed[: _num_panels(weight.num_rows)].view(torch.int64).clone()
            for weight in weights
        ]
        start = sum(map(len, heads))
        for head, weight in zip(heads, weights, strict=True):
            head[..., OFFSET] += start * LINE_BYTES
            start += len(weight.packed)
        return joined(weights, before=[head.view(torch.bfloat16) for head in heads])

    def unpack(self, weight: PackedWeight) -> Tensor:
        """The same numbers as were packed."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[..., K] to [..., N]. `bias` [N] is contiguous."""
        size = self.scratch_bytes(x.numel() // max(x.shape[-1], 1), x.shape[-1])
        scratch = torch.empty(size, dtype=torch.uint8)
        return product(self.multiply, x, weight, bias, scratch.data_ptr())

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Rows of W, as an embedding looks them up: [..., K]. Raises IndexError."""
        return looked_up(self.copy_rows, indices, weight)


def product(
    multiply: Callable[..., None],
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None,
    *more: int,
) -> Tensor:
    """x [..., K] W^T + bias, all of the dtype of `packed`. `more`: addresses that `multiply` takes
    after that of the product. Raises ValueError."""
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


def looked_up(copy_rows: Callable[..., bool], indices: Tensor, weight: PackedWeight) -> Tensor:
    """Rows of W: [..., K], of the dtype of `packed`. Raises IndexError."""
    wanted = indices.to(torch.int64).contiguous()
    out = torch.empty(*indices.shape, weight.num_columns, dtype=weight.packed.dtype)
    if not copy_rows(
        wanted.data_ptr(),
        wanted.numel(),
        weight.packed.data_ptr(),
        weight.num_rows,
        weight.num_columns,
        out.data_ptr(),
    ):
        raise IndexError(f"an index is not within the {weight.num_rows} rows")
    return out


def check(numbers: Tensor, width: int, dtype: torch.dtype) -> None:
    """Raises ValueError."""
    if numbers.dtype != dtype or numbers.device.type != "cpu":
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"{numbers.dtype} on {numbers.device}: must be {name} on the CPU")
    if numbers.shape[-1] != width or width == 0:
        raise ValueError(f"the shape is {tuple(numbers.shape)}, its last must be {width} and not 0")


def _num_panels(num_rows: int) -> int:
    return -(-num_rows // PANEL_ROWS)


ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: Signatures = {
    "quire_linear_heads": (COUNT, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear_pack": (None, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear": (
        None,
        (ADDRESS, COUNT, *(ADDRESS, ADDRESS, COUNT, COUNT), *(ADDRESS, ADDRESS), COUNT),
    ),
    "quire_linear_rows": (ctypes.c_bool, (ADDRESS, COUNT, ADDRESS, COUNT, COUNT, ADDRESS)),
    "quire_linear_scratch": (COUNT, (COUNT, COUNT)),
}


def bind_linear(library: ctypes.CDLL, isa: str) -> LinearKernel | None:
    """None: the library has none for `isa`, an instruction set without a bfloat16 dot product."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else LinearKernel(*functions)
