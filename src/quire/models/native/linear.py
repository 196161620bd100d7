"""The functions of linear.cpp over tensors: y = x W^T + bias in bfloat16, W packed once."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.binding import Signatures, bind

PANEL_ROWS = 32
PAIR = 2


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [num_rows, num_columns] as `packed` [panels, steps, rows of a panel, columns of a step],
    padded by zeros to whole panels and steps."""

    packed: Tensor
    num_rows: int
    num_columns: int

    @property
    def plain_bytes(self) -> int:
        """What W took, of the dtype of `packed`."""
        return self.num_rows * self.num_columns * self.packed.itemsize


def join(weights: Sequence[PackedWeight]) -> PackedWeight | None:
    """One weight of all their rows, of which they become views. None: not possible, since rows do
    not fill their panels."""
    panel_rows = weights[0].packed.shape[2]
    if any(weight.num_rows % panel_rows for weight in weights[:-1]):
        return None
    joined = torch.cat([weight.packed for weight in weights])
    parts = torch.split(joined, [len(weight.packed) for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.packed.data = part
    num_rows = sum(weight.num_rows for weight in weights)
    return PackedWeight(joined, num_rows, weights[0].num_columns)


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """Runs on as many threads as torch does. All numbers are bfloat16, on the CPU; raises
    ValueError for others, and where shapes do not fit."""

    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        return frozenset({torch.bfloat16})

    @property
    def is_exact(self) -> bool:
        return True

    def pack(self, weight: Tensor) -> PackedWeight:
        """`weight` [N, K] is left as it is."""
        num_rows, num_columns = weight.shape
        _check(weight, num_columns)
        panels, pairs = -(-num_rows // PANEL_ROWS), -(-num_columns // PAIR)
        packed = torch.empty(panels, pairs, PANEL_ROWS, PAIR, dtype=torch.bfloat16)
        rows = weight.contiguous()
        self.pack_into(
            rows.data_ptr(), num_rows, num_columns, packed.data_ptr(), torch.get_num_threads()
        )
        return PackedWeight(packed, num_rows, num_columns)

    def unpack(self, weight: PackedWeight) -> Tensor:
        """The same numbers as were packed."""
        return self.rows(torch.arange(weight.num_rows), weight)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[..., K] to [..., N]. `bias` [N] is contiguous."""
        _check(x, weight.num_columns)
        if bias is not None:
            _check(bias, weight.num_rows)
        rows = x.contiguous()
        out = x.new_empty(*x.shape[:-1], weight.num_rows)
        self.multiply(
            rows.data_ptr(),
            rows.numel() // weight.num_columns,
            weight.packed.data_ptr(),
            None if bias is None else bias.data_ptr(),
            weight.num_rows,
            weight.num_columns,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def rows(self, indices: Tensor, weight: PackedWeight) -> Tensor:
        """Rows of W, as an embedding looks them up: [..., K]. Raises IndexError."""
        wanted = indices.to(torch.int64).contiguous()
        out = torch.empty(*indices.shape, weight.num_columns, dtype=torch.bfloat16)
        if not self.copy_rows(
            wanted.data_ptr(),
            wanted.numel(),
            weight.packed.data_ptr(),
            weight.num_rows,
            weight.num_columns,
            out.data_ptr(),
        ):
            raise IndexError(f"an index is not within the {weight.num_rows} rows")
        return out


def _check(numbers: Tensor, width: int) -> None:
    if numbers.dtype != torch.bfloat16 or numbers.device.type != "cpu":
        raise ValueError(f"{numbers.dtype} on {numbers.device}: must be bfloat16 on the CPU")
    if numbers.shape[-1] != width or width == 0:
        raise ValueError(f"the shape is {tuple(numbers.shape)}, its last must be {width} and not 0")


ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: Signatures = {
    "quire_linear_pack": (None, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear": (None, (ADDRESS, COUNT, ADDRESS, ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear_rows": (ctypes.c_bool, (ADDRESS, COUNT, ADDRESS, COUNT, COUNT, ADDRESS)),
}


def bind_linear(library: ctypes.CDLL, isa: str) -> LinearKernel | None:
    """None: the library has none for `isa`, an instruction set without a bfloat16 dot product."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else LinearKernel(*functions)
