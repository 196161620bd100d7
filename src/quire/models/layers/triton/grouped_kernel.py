"""Kernels over weights of small integers with a scale, and some with an offset, for each group of
columns (`layers/grouped_weight.py`): their product with rows, and their rows widened.

Numbers of four bits lie in bytes, as many a RUN: the low halves of RUN bytes are the columns of a
first run, and the high halves those of the next. Both runs of a byte are multiplied by themselves,
so that no number changes its place in a register. A row of W has its numbers, its scales and its
offsets one after the other: the strides are those from row to row. UNIT columns that follow each
other, of which a run has a whole number, are of one group.
"""

import triton
import triton.language as tl


@triton.jit
def _spread(values, UNIT: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Return values [DEPTH / UNIT, COLUMNS], each for UNIT that follow each other."""
    wide = tl.broadcast_to(values[:, None, :], [DEPTH // UNIT, UNIT, COLUMNS])
    return tl.reshape(wide, [DEPTH, COLUMNS])


@triton.jit
def _column(byte, half, IS_PACKED: tl.constexpr, RUN: tl.constexpr):
    """Return the columns of bytes: of their low halves, or of the high ones where `half` is 1."""
    column = byte
    if IS_PACKED:
        column = byte // RUN * (2 * RUN) + half * RUN + byte % RUN
    return column


@triton.jit
def multiply(
    x,
    numbers,
    scales,
    offsets,
    bias,
    out,
    num_rows,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    ZERO: tl.constexpr,
    IS_PACKED: tl.constexpr,
    NUM_BYTES: tl.constexpr,
    NUMBER_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    COMPUTE: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write x [num_rows, SIZE] times W [WIDTH, SIZE] transposed, plus `bias` [WIDTH], to `out`
    [num_rows, WIDTH]. The grid is (tiles of rows, tiles of WIDTH). A row's products are added up by
    DEPTH bytes, from first to last, whatever the other rows are.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    width = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_width = row < num_rows, (width < WIDTH)[None, :]
    byte, unit = tl.arange(0, DEPTH), tl.arange(0, DEPTH // UNIT) * UNIT
    row_at = x + row.to(tl.int64)[:, None] * SIZE
    weight_at = numbers + width.to(tl.int64)[None, :] * NUMBER_STRIDE
    group_at = width.to(tl.int64)[None, :] * SCALE_STRIDE
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for low in range(0, NUM_BYTES, DEPTH):
        here = low + byte
        is_byte = (here < NUM_BYTES)[:, None] & is_width
        content = tl.load(weight_at + here[:, None], is_byte, 0)
        for half in tl.static_range(2 if IS_PACKED else 1):
            column = _column(here, half, IS_PACKED, RUN)
            first = _column(low + unit, half, IS_PACKED, RUN)
            group = group_at + (first // GROUP)[:, None]
            is_group = (first < SIZE)[:, None] & is_width
            found = content
            if IS_PACKED:
                found = content >> (4 * half) & 15
            wide = found.to(tl.float32) - ZERO
            scale = tl.load(scales + group, is_group, 0).to(tl.float32)
            wide *= _spread(scale, UNIT, DEPTH, COLUMNS)
            if HAS_OFFSETS:
                offset = tl.load(offsets + group, is_group, 0).to(tl.float32)
                wide += _spread(offset, UNIT, DEPTH, COLUMNS)
            is_part = is_row[:, None] & (column < SIZE)[None, :]
            part = tl.load(row_at + column[None, :], is_part, 0).to(COMPUTE)
            sums = tl.dot(part, wide.to(COMPUTE), sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias + width, width < WIDTH, 0).to(tl.float32)[None, :]
    at = out + row.to(tl.int64)[:, None] * WIDTH + width[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), is_row[:, None] & is_width)


@triton.jit
def widen(
    indices,
    numbers,
    scales,
    offsets,
    out,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    IS_PACKED: tl.constexpr,
    NUMBER_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    RUN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write rows of W, those of `indices`, to `out` [rows, SIZE]. The grid is (rows, tiles of
    COLUMNS)."""
    row = tl.load(indices + tl.program_id(0)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_there = column < SIZE
    if IS_PACKED:
        byte = column // (2 * RUN) * RUN + column % RUN
        content = tl.load(numbers + row * NUMBER_STRIDE + byte, is_there, 0)
        found = content >> (column // RUN % 2 * 4).to(tl.uint8) & 15
    else:
        found = tl.load(numbers + row * NUMBER_STRIDE + column, is_there, 0)
    group = row * SCALE_STRIDE + column // GROUP
    scale = tl.load(scales + group, is_there, 0).to(tl.float32)
    wide = (found.to(tl.float32) - ZERO) * scale
    if HAS_OFFSETS:
        wide += tl.load(offsets + group, is_there, 0).to(tl.float32)
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    tl.store(out + at, wide.to(out.dtype.element_ty), is_there)
