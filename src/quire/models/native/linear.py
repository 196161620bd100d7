"""The functions of linear.cpp over tensors: y = x W^T + bias in bfloat16, W packed once."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PANEL_ROWS = 32
GROUP_PANELS = 2
PAIR = 2
HUGE_PAGE_BYTES = 2**21


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """W [num_rows, num_columns] as `packed` [panels, pairs, PANEL_ROWS, PAIR], padded by zeros
    to whole pairs and GROUP_PANELS."""

    packed: Tensor
    num_rows: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class LinearKernel:
    """Runs on as many threads as torch does. All numbers are bfloat16, on the CPU; raises
    ValueError for others, and where shapes do not fit."""

    pack_into: Callable[..., None]
    multiply: Callable[..., None]
    copy_rows: Callable[..., bool]

    def pack(self, weight: Tensor) -> PackedWeight:
        """`weight` [N, K] is left as it is."""
        num_rows, num_columns = weight.shape
        _check(weight, num_columns)
        groups, pairs = -(-num_rows // (PANEL_ROWS * GROUP_PANELS)), -(-num_columns // PAIR)
        packed = _aligned(groups * GROUP_PANELS, pairs, PANEL_ROWS, PAIR)
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


def _aligned(*shape: int) -> Tensor:
    """At the start of a huge page, if it can fill one; what lies before it is never touched."""
    count = math.prod(shape)
    page = HUGE_PAGE_BYTES // torch.bfloat16.itemsize
    if count < page:
        return torch.empty(shape, dtype=torch.bfloat16)
    numbers = torch.empty(count + page, dtype=torch.bfloat16)
    start = -numbers.data_ptr() % HUGE_PAGE_BYTES // torch.bfloat16.itemsize
    return numbers[start : start + count].view(shape)


def _check(numbers: Tensor, width: int) -> None:
    if numbers.dtype != torch.bfloat16 or numbers.device.type != "cpu":
        raise ValueError(f"{numbers.dtype} on {numbers.device}: must be bfloat16 on the CPU")
    if numbers.shape[-1] != width or width == 0:
        raise ValueError(f"the shape is {tuple(numbers.shape)}, its last must be {width} and not 0")


ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES = {
    "quire_linear_pack": (None, (ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear": (None, (ADDRESS, COUNT, ADDRESS, ADDRESS, COUNT, COUNT, ADDRESS, COUNT)),
    "quire_linear_rows": (ctypes.c_bool, (ADDRESS, COUNT, ADDRESS, COUNT, COUNT, ADDRESS)),
}


def bind_linear(library: ctypes.CDLL, isa: str) -> LinearKernel | None:
    """None: the library has none for `isa`, an instruction set without a bfloat16 dot product."""
    functions = []
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, f"{name}_{isa}", None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
        functions.append(function)
    return LinearKernel(*functions)
