"""Functions shared by the attention kernels: masks and loads.

All code is Triton's subset of Python; uppercase names are compile-time constants.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.widen_kernel import widen

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def first_visible(position, WINDOW_SIZE: tl.constexpr, CHUNK_SIZE: tl.constexpr):
    first = position * 0
    if WINDOW_SIZE > 0:
        first = tl.maximum(position - (WINDOW_SIZE - 1), 0)
    if CHUNK_SIZE > 0:
        first = position // CHUNK_SIZE * CHUNK_SIZE
    return first


@triton.jit
def tanh(powers):
    """Return tanh(x) of `powers`, 2 log2(e) x."""
    root = tl.rsqrt(1 + tl.exp2(powers))
    return 1 - 2 * (root * root)


@triton.jit
def read(
    elements,
    rows,
    seen,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    COLUMNS: tl.constexpr,
    FORMAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    IS_PACKED: tl.constexpr,
):
    """Return COLUMNS columns, from FIRST on, of the `rows` [N] of `elements`, in COMPUTE and
    without their scales: zeros for rows that are not `seen`, and beyond WIDTH. None says that all
    are seen."""
    columns = FIRST + tl.arange(0, COLUMNS)
    places = elements + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    if seen is not None:
        inside = seen[:, None] & (columns < WIDTH)[None, :]
        kept = tl.load(places, mask=inside, other=0)
    elif FIRST + COLUMNS > WIDTH:
        kept = tl.load(places, mask=(columns < WIDTH)[None, :], other=0)
    else:
        kept = tl.load(places)
    if FORMAT != 0:
        kept = widen(kept, FORMAT, COMPUTE, IS_PACKED)
    return kept.to(COMPUTE)


@triton.jit
def read_words(elements, rows, seen, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the `rows` [N] of one-byte `elements` as int32 [N, COLUMNS // 4], four columns each:
    zeros as in `read`. WIDTH is a multiple of 4."""
    columns = tl.arange(0, COLUMNS // 4)
    inside = seen[:, None] & (columns < WIDTH // 4)[None, :]
    words = elements.to(tl.pointer_type(tl.int32), bitcast=True)
    return tl.load(
        words + rows.to(tl.int64)[:, None] * (WIDTH // 4) + columns[None, :], mask=inside, other=0
    )
