"""Mamba-2's state space and Mamba's selective scan of `RecurrentKernels`, by one kernel.

A program takes some rows of a head's state through all tokens of a sequence, in registers: rows
need no others. The order of sums is that of the compiled program, of which a model has one for
steps of any kind, so that a state is the same to the bit however the sequence is cut.
"""

import triton
import triton.language as tl


@triton.jit
def _token(
    rows,
    steps,
    b,
    c,
    token,
    is_there,
    row_stride,
    step_stride,
    b_stride,
    c_stride,
    row,
    column,
    HEAD_SIZE: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    IS_SELECTIVE: tl.constexpr,
):
    """Load the inputs of a token for a head and its rows, zeros where it is not there."""
    at = tl.cast(token, tl.int64)
    in_head = (row < HEAD_SIZE) & is_there
    in_state = (column < STATE_SIZE) & is_there
    x = tl.load(rows + at * row_stride + row, in_head, 0)
    if IS_SELECTIVE:
        step = tl.load(steps + at * step_stride + row, in_head, 0)
    else:
        step = tl.load(steps + at * step_stride, is_there, 0)
    b_row = tl.load(b + at * b_stride + column, in_state, 0)
    c_row = tl.load(c + at * c_stride + column, in_state, 0)
    return x, step, b_row, c_row


@triton.jit(
    do_not_specialize=[
        *("rows", "steps", "rates", "b", "c", "skip", "states", "out"),
        *("starts", "reads", "writes", "sequences"),
        *("row_stride", "step_stride", "b_stride", "c_stride", "state_stride"),
    ]
)
def scan(
    rows,
    steps,
    rates,
    b,
    c,
    skip,
    states,
    out,
    starts,
    reads,
    writes,
    sequences,
    row_stride,
    step_stride,
    b_stride,
    c_stride,
    state_stride,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    STATE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    IS_SELECTIVE: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write the outputs of a sequence for some rows of a head, and its states at the ends of its
    pieces. SHARED heads have B and C in common. IS_SELECTIVE: each row has its own step, and each
    number of the state its own rate. Their rows begin at multiples of VECTOR numbers. The grid is
    the sequences, the heads, and slices of ROWS."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    piece = tl.load(sequences + seq)
    last = tl.load(sequences + seq + 1)
    begin = tl.load(starts + piece)
    end = tl.load(starts + last)
    read = tl.load(reads + piece, piece < last, 0)
    in_head = row < HEAD_SIZE
    inside = in_head[:, None] & (column < STATE_SIZE)[None, :]
    place = (head * HEAD_SIZE + row)[:, None] * STATE_SIZE + column[None, :]
    source = states + read.to(tl.int64) * state_stride + place
    state = tl.load(tl.multiple_of(source, (1, 4 * VECTOR)), inside & (read > 0), 0)
    if IS_SELECTIVE:
        rate = tl.load(rates + place, inside, 0)
    else:
        rate = tl.load(rates + head)
    if skip is not None:
        passed = tl.load(skip + (row if IS_SELECTIVE else head), in_head if IS_SELECTIVE else None)
    rows += head * HEAD_SIZE
    steps += head
    b += head // SHARED * STATE_SIZE
    c += head // SHARED * STATE_SIZE
    x, step, b_row, c_row = _token(
        rows,
        steps,
        b,
        c,
        begin,
        begin < end,
        row_stride,
        step_stride,
        b_stride,
        c_stride,
        row,
        column,
        HEAD_SIZE,
        STATE_SIZE,
        IS_SELECTIVE,
    )
    for index in range(piece, last):
        stop = tl.load(starts + index + 1)
        for token in range(begin, stop):
            inputs = x.to(tl.float32)
            size = step
            inward = b_row.to(tl.float32)
            outward = c_row.to(tl.float32)
            # the next token's inputs come while this one is computed
            x, step, b_row, c_row = _token(
                rows,
                steps,
                b,
                c,
                token + 1,
                token + 1 < end,
                row_stride,
                step_stride,
                b_stride,
                c_stride,
                row,
                column,
                HEAD_SIZE,
                STATE_SIZE,
                IS_SELECTIVE,
            )
            if IS_SELECTIVE:
                kept = tl.exp(size[:, None] * rate)
            else:
                kept = tl.exp(size * rate)
            state = state * kept + (size * inputs)[:, None] * inward[None, :]
            found = tl.sum(state * outward[None, :], 1)
            if skip is not None:
                found += passed * inputs
            target = out + (tl.cast(token, tl.int64) * HEADS + head) * HEAD_SIZE + row
            tl.store(target, found.to(STORED), in_head)
        begin = stop
        write = tl.load(writes + index)
        target = states + write.to(tl.int64) * state_stride + place
        tl.store(tl.multiple_of(target, (1, 4 * VECTOR)), state, inside & (write > 0))
