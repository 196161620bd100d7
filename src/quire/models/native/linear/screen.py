"""The functions of screen.cpp and chosen.cpp over tensors: of y = x W^T in bfloat16 only what can
be the largest of its row, W packed in 12 bits and once more in bytes."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.models.native.binding import Signatures, bind
from quire.models.native.linear.int8 import PANEL_ROWS as BYTE_PANEL_ROWS
from quire.models.native.linear.int8 import STEP_COLUMNS
from quire.models.native.linear.linear import LINE_BYTES, PANEL_ROWS, PackedWeight

BOUND_BYTES = 8
"""For each row of W."""
MASK_ROWS = 64


class ScreeningFields(ctypes.Structure):
    """`Screening` of screen.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "packed", "bounds", "chosen", "scratch")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "num_threads")),
    )


class ChosenFields(ctypes.Structure):
    """`Chosen` of chosen.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "packed", "chosen", "y", "scratch")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "num_threads")),
    )


@dataclass(frozen=True, slots=True)
class Screen:
    """Of W [N, K]: `weight` as LinearKernel packs it; `packed`, its bytes, a line of scales and
    K / 4 more for each 16 rows; `bounds`, two floats for each row."""

    weight: PackedWeight
    packed: Tensor
    bounds: Tensor

    @property
    def num_panels(self) -> int:
        """Of `weight`."""
        return -(-self.weight.num_rows // PANEL_ROWS)


@dataclass(frozen=True, slots=True)
class Choice:
    """`panels`: int64 [ceil(M / 64), ceil(N / 32)], a bit for each of 64 rows of x. `count`: of the
    bits that are set."""

    panels: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class ScreenKernel:
    """Runs on as many threads as torch does. x is bfloat16 [M, K], dense and on the CPU."""

    pack_scratch: Callable[..., int]
    pack_into: Callable[..., bool]
    scratch_bytes: Callable[..., int]
    choose_into: Callable[..., int]
    chosen_scratch: Callable[..., int]
    multiply_chosen: Callable[..., None]

    def pack(self, weight: PackedWeight) -> Screen | None:
        """None: a number of W is not finite, or a row's norm is 1e15 or more."""
        num_rows, num_columns = weight.num_rows, weight.num_columns
        num_threads = torch.get_num_threads()
        panels, steps = -(-num_rows // BYTE_PANEL_ROWS), -(-num_columns // STEP_COLUMNS)
        packed = torch.empty(panels, 1 + steps, LINE_BYTES, dtype=torch.uint8)
        bounds = torch.empty(panels, BOUND_BYTES * BYTE_PANEL_ROWS, dtype=torch.uint8)
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
        return Screen(weight, packed, bounds) if is_packed else None

    def working_bytes(self, screen: Screen, num_rows: int) -> int:
        """What `choose` and `linear` take beside y for so many rows of x, from above."""
        weight, num_threads = screen.weight, torch.get_num_threads()
        num_masks = -(-num_rows // MASK_ROWS) * screen.num_panels
        call = ScreeningFields(
            m=num_rows, n=weight.num_rows, k=weight.num_columns, num_threads=num_threads
        )
        chosen_bytes: int = self.chosen_scratch(weight.num_columns, num_threads)
        return int(self.scratch_bytes(call)) + chosen_bytes + 8 * num_masks

    def choose(self, x: Tensor, screen: Screen) -> Choice:
        """Every entry of y that is the largest of its row is in a panel that is chosen for it, and
        so is all of a row of x that is not finite, whose norm is 1e15 or more, or nearly zero."""
        panels = torch.empty(-(-len(x) // MASK_ROWS), screen.num_panels, dtype=torch.int64)
        call = ScreeningFields(
            x=x.data_ptr(),
            packed=screen.packed.data_ptr(),
            bounds=screen.bounds.data_ptr(),
            chosen=panels.data_ptr(),
            m=len(x),
            n=screen.weight.num_rows,
            k=screen.weight.num_columns,
            num_threads=torch.get_num_threads(),
        )
        scratch = _bytes(self.scratch_bytes(call))
        call.scratch = scratch.data_ptr()
        return Choice(panels, self.choose_into(call))

    def linear(self, x: Tensor, weight: PackedWeight, choice: Choice) -> Tensor:
        """y [M, N], of LinearKernel's very numbers where chosen, -inf elsewhere."""
        out = x.new_empty(len(x), weight.num_rows)
        num_threads = torch.get_num_threads()
        scratch = _bytes(self.chosen_scratch(weight.num_columns, num_threads))
        self.multiply_chosen(
            ChosenFields(
                x=x.data_ptr(),
                packed=weight.packed.data_ptr(),
                chosen=choice.panels.data_ptr(),
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


ADDRESS, COUNT = ctypes.c_void_p, ctypes.c_int64
SIGNATURES: Signatures = {
    "quire_screen_pack_scratch": (COUNT, (COUNT, COUNT)),
    "quire_screen_pack": (
        ctypes.c_bool,
        (ADDRESS, COUNT, COUNT, ADDRESS, ADDRESS, ADDRESS, COUNT),
    ),
    "quire_screen_scratch": (COUNT, (ctypes.POINTER(ScreeningFields),)),
    "quire_screen": (COUNT, (ctypes.POINTER(ScreeningFields),)),
    "quire_linear_chosen_scratch": (COUNT, (COUNT, COUNT)),
    "quire_linear_chosen": (None, (ctypes.POINTER(ChosenFields),)),
}


def bind_screen(library: ctypes.CDLL, isa: str) -> ScreenKernel | None:
    """None: the library has none for `isa`, an instruction set without a product of bytes."""
    functions = bind(library, isa, SIGNATURES)
    return None if functions is None else ScreenKernel(*functions)
