"""Triton's kernels between a decoder's linear layers. Numbers are computed in float32 and rounded
where transformers rounds them; a program computes one row, or one head of it, by itself.
"""

import triton
import triton.language as tl

SATURATED: tl.constexpr = tl.constexpr(30.0)
"""A gate from which on its tangent is 1 in float32."""


@triton.jit
def _scaled(x, factor, weight, KIND: tl.constexpr, STORED: tl.constexpr):
    """Multiply by the factor of an RMSNorm and its weight. KIND is an index into NORM_KINDS."""
    weight = weight.to(tl.float32)
    if KIND == 0:
        scaled = (x * factor).to(STORED).to(tl.float32) * weight
    else:
        scaled = x * factor * (weight + 1.0)
    return scaled


@triton.jit
def norm(
    x,
    added,
    weight,
    out,
    epsilon,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write RMSNorm(x + added) of rows of WIDTH, and leave the sum in `x`; `added` may be None. The
    grid is the rows."""
    column = tl.arange(0, COLUMNS)
    mine = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mine, 0).to(tl.float32)
    if added is not None:
        total = (row + tl.load(added + at, mine, 0).to(tl.float32)).to(STORED)
        tl.store(x + at, total, mine)
        row = total.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + epsilon)
    scale = tl.load(weight + column, mine, 0)
    tl.store(out + at, _scaled(row, factor, scale, KIND, STORED).to(STORED), mine)


@triton.jit
def _part(head, first, offsets, mine, factor, weight, KIND: tl.constexpr, STORED: tl.constexpr):
    """Load elements of a head from `first` on; where the head has a norm, normed and rounded."""
    part = tl.load(head + first + offsets, mine, 0).to(tl.float32)
    if weight is not None:
        scale = tl.load(weight + first + offsets, mine, 0)
        part = _scaled(part, factor, scale, KIND, STORED).to(STORED).to(tl.float32)
    return part


@triton.jit
def _turn(
    head,
    cos,
    sin,
    weight,
    epsilon,
    HEAD_SIZE: tl.constexpr,
    ROTARY: tl.constexpr,
    HEAD_COLUMNS: tl.constexpr,
    HALF_COLUMNS: tl.constexpr,
    REST_COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    STORED: tl.constexpr,
):
    """Norm and rotate one head in place."""
    factor = 1.0
    if weight is not None:
        column = tl.arange(0, HEAD_COLUMNS)
        whole = tl.load(head + column, column < HEAD_SIZE, 0).to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(whole * whole, 0) / HEAD_SIZE + epsilon)
    HALF: tl.constexpr = ROTARY // 2
    turned = tl.arange(0, HALF_COLUMNS)
    mine = turned < HALF
    a = _part(head, 0, turned, mine, factor, weight, KIND, STORED)
    b = _part(head, HALF, turned, mine, factor, weight, KIND, STORED)
    if weight is not None and REST_COLUMNS > 0:
        rest = tl.arange(0, REST_COLUMNS)
        beyond = rest < HEAD_SIZE - ROTARY
        kept = _part(head, ROTARY, rest, beyond, factor, weight, KIND, STORED)
        tl.store(head + ROTARY + rest, kept.to(STORED), beyond)
    cos_a = tl.load(cos + turned, mine, 0).to(tl.float32)
    cos_b = tl.load(cos + HALF + turned, mine, 0).to(tl.float32)
    sin_a = tl.load(sin + turned, mine, 0).to(tl.float32)
    sin_b = tl.load(sin + HALF + turned, mine, 0).to(tl.float32)
    tl.store(head + turned, (a * cos_a - b * sin_a).to(STORED), mine)
    tl.store(head + HALF + turned, (b * cos_b + a * sin_b).to(STORED), mine)


@triton.jit
def rope(
    x,
    cos,
    sin,
    query_weight,
    key_weight,
    query_epsilon,
    key_epsilon,
    row_stride,
    NUM_QUERY: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    ROTARY: tl.constexpr,
    HEAD_COLUMNS: tl.constexpr,
    HALF_COLUMNS: tl.constexpr,
    REST_COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
    STORED: tl.constexpr,
):
    """Norm and rotate the heads that each row begins with, in place. The grid is the rows and their
    heads. One warp a program: what it reads for the norm is all there before anything is written,
    since the sum over the head waits for it."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1)
    head = x + row * row_stride + index * HEAD_SIZE
    cos += row * ROTARY
    sin += row * ROTARY
    if index < NUM_QUERY:
        _turn(
            head,
            cos,
            sin,
            query_weight,
            query_epsilon,
            HEAD_SIZE,
            ROTARY,
            HEAD_COLUMNS,
            HALF_COLUMNS,
            REST_COLUMNS,
            KIND,
            STORED,
        )
    else:
        _turn(
            head,
            cos,
            sin,
            key_weight,
            key_epsilon,
            HEAD_SIZE,
            ROTARY,
            HEAD_COLUMNS,
            HALF_COLUMNS,
            REST_COLUMNS,
            KIND,
            STORED,
        )


@triton.jit
def _sigmoid(x):
    """Return 1 / (1 + exp(-x)), without an exponential that overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def gate(
    x,
    out,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACT: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write act(first half) * second half of rows of 2 * WIDTH. ACT is an index into ACTIVATIONS.
    The grid is the rows and tiles of COLUMNS."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mine = column < WIDTH
    at = x + row * 2 * WIDTH + column
    gates = tl.load(at, mine, 0).to(tl.float32)
    if ACT == 0:
        acted = gates * _sigmoid(gates)
    else:
        near = tl.minimum(tl.maximum(gates, -SATURATED), SATURATED)
        inner = (near * near * near * 0.044715 + near) * 0.7978845608028654
        acted = gates * _sigmoid(2 * inner)
    values = tl.load(at + WIDTH, mine, 0).to(tl.float32)
    tl.store(
        out + row * WIDTH + column, (acted.to(STORED).to(tl.float32) * values).to(STORED), mine
    )
