"""The kernels of linear layers over weights in groups: cases of the forms that files have most."""

from collections.abc import Iterator
from functools import partial

import torch

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.layers.triton.grouped import WIDENED_COLUMNS, RowLayout
from quire.models.layers.triton.grouped_kernel import multiply, widen
from quire.models.layers.triton.launch import grouped_constants
from quire.models.weights.group_form import GroupForm
from tools.triton_figures.program import NAMES, Case, Kernels, Program

FORMS = {
    "4 bits, groups of 32": GroupForm(32, 4, 2, has_offsets=False),
    "4 bits, groups of 32, offsets": GroupForm(32, 4, 4, has_offsets=True),
    "4 bits, groups of 128, offsets": GroupForm(128, 4, 4, has_offsets=True),
    "8 bits, groups of 32": GroupForm(32, 8, 2, has_offsets=False),
}
"""As Q4_0, Q4_K, GPTQ and Q8_0 have them."""
SIZES = (4096, 14336)
"""Rows and columns of a weight."""
FEW_ROWS, MANY_ROWS = 1, 64
FEW = {("4 bits, groups of 32", "bf16"): (80, 90)}
"""The capabilities to compile some cases for where there is little time."""


def programs(form: GroupForm, dtype: torch.dtype, _: DeviceProperties) -> Iterator[Program]:
    layout = RowLayout(form, SIZES[1])
    pointers = dict.fromkeys(("x", "bias", "out"), f"*{NAMES[dtype]}")
    scale = "*fp16" if form.scale_bytes == 2 else "*fp32"
    types = {
        **pointers,
        "numbers": "*u8" if layout.is_halved else "*i8",
        "scales": scale,
        "offsets": scale if form.has_offsets else None,
        "indices": "*i64",
    }
    for name, num_rows in (("few rows", FEW_ROWS), ("many rows", MANY_ROWS)):
        tile, num_warps, num_stages = grouped_constants(num_rows, dtype)
        more = {
            "WIDTH": SIZES[0],
            "NUM_BYTES": layout.num_bytes,
            "HAS_BIAS": True,
            "UNIT": layout.unit,
        }
        constants = {**layout.constants(), **tile, **more, "HAS_BIAS": True}
        unaligned = frozenset(("num_rows",))
        yield Program(
            f"multiply, {name}", multiply, types, constants, num_warps, num_stages, unaligned
        )
    constants = {**layout.constants(), "COLUMNS": WIDENED_COLUMNS}
    yield Program("widen", widen, types, constants, num_warps)


def cases() -> Iterator[Case]:
    for name, form in FORMS.items():
        for dtype in (torch.bfloat16, torch.float32):
            labels = (name, NAMES[dtype])
            yield Case(labels, partial(programs, form, dtype), FEW.get(labels, ()))


GROUPED = Kernels(
    "Linear layers in groups",
    f"Of a weight of {SIZES[0]} x {SIZES[1]}, the form; `widen` makes its rows plain.",
    ("weight", "dtype"),
    cases,
)
