"""Products over weights in groups, and their rows, against the same numbers in float64, within what
rounding explains."""

from collections.abc import Iterator
from itertools import product

import torch
from tests.models.layers.random_groups import FORMS, UNIT, made
from torch import Tensor

from bench.gpu.check import Finding, Place
from quire.models.layers.triton.grouped import TritonGrouped

SIZES = ((896, 4864), (4096, 14400))
"""Rows and columns of a weight: columns that are no whole tiles."""
REHEARSED = ((37, 96),)
NUM_ROWS = (1, 17, 100, 300)
BFLOAT16_UNIT = 2.0**-8


@torch.inference_mode()
def check_grouped(place: Place) -> Iterator[Finding]:
    """Each form in each dtype, for one row of x, for few and for many."""
    sizes = REHEARSED if place.is_rehearsal else SIZES
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes[:1] if place.is_rehearsal else dtypes:
        for (num_rows, num_columns), form in product(sizes, FORMS):
            stored = made(num_rows, dtype, form, num_columns=num_columns)
            kernel = TritonGrouped(place.device)
            packed = kernel.pack_stored(stored)
            wide = stored.values().double()
            what = f"{num_rows} x {num_columns}, {form}, {str(dtype).removeprefix('torch.')}"
            same = torch.equal(kernel.unpack(packed).cpu(), stored.values())
            yield Finding(f"rows, {what}", {}, None if same else "other numbers")
            for count in NUM_ROWS[:2] if place.is_rehearsal else NUM_ROWS:
                x = torch.randn(count, num_columns, generator=torch.Generator().manual_seed(count))
                x = x.to(dtype)
                found = kernel.linear(x.to(place.device), packed, None)
                yield _finding(f"{count} rows by {what}", found, x.double(), wide)


def _finding(what: str, found: Tensor, x: Tensor, wide: Tensor) -> Finding:
    unit = UNIT.get(found.dtype, BFLOAT16_UNIT)
    steps = (x.shape[1] + 2) * UNIT[torch.float32]
    allowed = x.abs() @ wide.abs().T * (steps + unit)
    worst = float(((found.cpu().double() - x @ wide.T).abs() / allowed).nan_to_num(torch.inf).max())
    fault = None if worst <= 1 else f"{worst:.3g} times as far off as rounding explains"
    return Finding(what, {"of_allowed_error": worst}, fault)
