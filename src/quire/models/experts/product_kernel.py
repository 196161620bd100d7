"""A kernel that multiplies rows by the weights of the experts which they are routed to: a grouped
product, with the gate's activation where gate and up are multiplied together.

A program has a tile of rows of one expert, found by the experts' counts on the device: the grid
depends on shapes alone, and a program beyond the last tile returns at once. Weights of experts
without rows are not read. A row's products are added up by `DEPTH`, from first to last, whichever
rows share its tile.
"""

import triton
import triton.language as tl

NONE = tl.constexpr(0)
SILU = tl.constexpr(1)
GELU = tl.constexpr(2)
GELU_TANH = tl.constexpr(3)


@triton.jit
def _sigmoid(x):
    small = tl.exp2(tl.abs(x) * -1.4426950408889634)
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == SILU:
        return x * _sigmoid(x)
    if ACTIVATION == GELU:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def multiply(
    rows,
    weight,
    other_weight,
    bias,
    other_bias,
    out,
    counts,
    starts,
    order,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    EXPERT_STRIDE: tl.constexpr,
    COLUMN_STRIDE: tl.constexpr,
    DEPTH_STRIDE: tl.constexpr,
    BIAS_STRIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    COMPUTE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Write to `out` [P, WIDTH], for each pair, `weight` [experts, WIDTH, SIZE] of its expert times
    its row of `rows` [P / PAIRS_PER_ROW, SIZE], plus `bias` [experts, WIDTH] with HAS_BIAS. With an
    ACTIVATION that is what it takes, and is multiplied by the same with `other_weight` and
    `other_bias`, of the same strides. Rows of `out` of pairs that `order` lacks are not written.
    The grid is (tiles of rows, tiles of columns); EXPERTS is NUM_EXPERTS or a power of two above.
    """
    tile = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    tiles = (tl.load(counts + each, each < NUM_EXPERTS, 0) + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
    if expert >= NUM_EXPERTS:
        return
    first = (tile - tl.sum(tl.where(each < expert, tiles, 0), 0)) * ROWS
    row = first + tl.arange(0, ROWS)
    is_live = row < tl.load(counts + expert)
    pair = tl.load(order + tl.load(starts + expert) + row, is_live, 0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = column < WIDTH
    depth = tl.arange(0, DEPTH)

    row_at = rows + (pair // PAIRS_PER_ROW)[:, None] * SIZE + depth[None, :]
    weight_at = expert.to(tl.int64) * EXPERT_STRIDE
    weight_at += depth[:, None] * DEPTH_STRIDE + column[None, :] * COLUMN_STRIDE
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    other_sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for low in range(0, SIZE, DEPTH):
        is_deep = low + depth < SIZE
        x = tl.load(row_at + low, is_live[:, None] & is_deep[None, :], 0).to(COMPUTE)
        at = weight_at + low * DEPTH_STRIDE
        is_weight = is_deep[:, None] & is_inside[None, :]
        part = tl.load(weight + at, is_weight, 0).to(COMPUTE)
        sums = tl.dot(x, part, sums, input_precision="ieee")
        if ACTIVATION != NONE:
            part = tl.load(other_weight + at, is_weight, 0).to(COMPUTE)
            other_sums = tl.dot(x, part, other_sums, input_precision="ieee")

    if HAS_BIAS:
        bias_at = expert * BIAS_STRIDE + column
        sums += tl.load(bias + bias_at, is_inside, 0).to(tl.float32)[None, :]
        if ACTIVATION != NONE:
            other_sums += tl.load(other_bias + bias_at, is_inside, 0).to(tl.float32)[None, :]
    if ACTIVATION != NONE:
        sums = _activate(sums, ACTIVATION) * other_sums
    at = out + pair[:, None] * WIDTH + column[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), is_live[:, None] & is_inside[None, :])
