"""The kernel that copies blocks: cases by what divides the bytes of a block in each tensor."""

from collections.abc import Iterator
from functools import partial

from quire.models.attention.triton.tiles import DeviceProperties
from quire.models.kv.triton.copy_kernel import copy_tiles
from quire.models.kv.triton.gatherer import NUM_WARPS, copy_constants
from tools.triton_figures.program import Case, Kernels, Program

UNALIGNED = frozenset(("source_ids", "target_ids", "num_tiles"))
TABLES = dict.fromkeys(("sources", "targets", "counts", "source_ids", "target_ids"), "*i64")
FEW = {16: (80, 90)}
"""The capabilities to compile a case for where there is little time."""


def programs(alignment: int, _: DeviceProperties) -> Iterator[Program]:
    constants = copy_constants(alignment)
    yield Program("copy_tiles", copy_tiles, TABLES, constants, NUM_WARPS, unaligned=UNALIGNED)


def cases() -> Iterator[Case]:
    for alignment in (16, 8, 4, 2, 1):
        yield Case((str(alignment),), partial(programs, alignment), FEW.get(alignment, ()))


COPIES = Kernels(
    "Copies of blocks",
    "Nearly all models have 16; 8 is for blocks of 8 tokens and an odd number of one-byte "
    "elements, and less for smaller blocks of such.",
    ("bytes that divide a block's parts",),
    cases,
)
