"""The causal convolution of `RecurrentKernels`, with the tails of rows that it keeps.

A program computes some channels of a sequence. An output is a function of the last WIDTH rows
alone, so tokens are computed side by side: a row before the sequence's first comes from its tail.
Tails are written last, when all that the sequence reads was read: it may be in the same place.
"""

import triton
import triton.language as tl

from quire.models.recurrent.triton.functions import sigmoid


@triton.jit
def _shifted(tail, shift, TAPS: tl.constexpr):
    """Return column i + shift of a tail [COLUMNS, TAPS] in place of column i, and zeros behind the
    last. Integers are added, so that a number stays as it is to the bit."""
    tap = tl.arange(0, TAPS)
    is_source = tap[None, None, :] == tap[None, :, None] + shift
    bits = tail.to(tl.int32, bitcast=True)[:, None, :]
    return tl.sum(tl.where(is_source, bits, 0), 2).to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize=[
        *("rows", "weight", "bias", "states", "out"),
        *("starts", "reads", "writes", "sequences", "row_stride", "state_stride"),
    ]
)
def convolve(
    rows,
    weight,
    bias,
    states,
    out,
    starts,
    reads,
    writes,
    sequences,
    row_stride,
    state_stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_ACTIVATED: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write the convolution of all rows of a sequence, and the tails at the ends of its pieces. The
    grid is the sequences and tiles of COLUMNS. A tail is WIDTH - 1 rows, at most TAPS."""
    TAIL: tl.constexpr = WIDTH - 1
    seq = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mine = column < CHANNELS
    piece = tl.load(sequences + seq)
    last = tl.load(sequences + seq + 1)
    first = tl.load(starts + piece)
    end = tl.load(starts + last)
    read = tl.load(reads + piece, piece < last, 0)
    before = states + read.to(tl.int64) * state_stride + column * TAIL
    tap = tl.arange(0, TAPS)
    in_tail = mine[:, None] & (tap < TAIL)[None, :]
    tail = tl.load(before[:, None] + tap[None, :], in_tail & (read > 0), 0)
    for token in range(first, end, TOKENS):
        row = token + tl.arange(0, TOKENS)
        theirs = (row < end)[:, None] & mine[None, :]
        total = tl.zeros([TOKENS, COLUMNS], tl.float32)
        if bias is not None:
            total += tl.load(bias + column, mine, 0).to(tl.float32)[None, :]
        for index in tl.static_range(WIDTH):
            at = row - TAIL + index
            is_new = (at >= first)[:, None]
            source = rows + at.to(tl.int64)[:, None] * row_stride + column[None, :]
            x = tl.load(source, theirs & is_new, 0).to(tl.float32)
            if index < TAIL:
                place = (at - first + TAIL)[:, None]
                old = tl.load(
                    before[None, :] + place, theirs & (at < first)[:, None] & (read > 0), 0
                )
                x = tl.where(is_new, x, old)
            factor = tl.load(weight + column * WIDTH + index, mine, 0).to(tl.float32)
            total += x * factor[None, :]
        if IS_ACTIVATED:
            total *= sigmoid(total)
        target = out + row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        tl.store(target, total.to(STORED), theirs)
    tl.debug_barrier()
    for index in range(piece, last):
        stop = tl.load(starts + index + 1)
        write = tl.load(writes + index)
        at = stop - TAIL + tap
        is_new = (at >= first)[None, :]
        source = rows + at.to(tl.int64)[None, :] * row_stride + column[:, None]
        x = tl.load(source, in_tail & is_new, 0).to(tl.float32)
        x = tl.where(is_new, x, _shifted(tail, stop - first, TAPS))
        target = states + write.to(tl.int64) * state_stride
        target += column[:, None] * TAIL + tap[None, :]
        tl.store(target, x, in_tail & (write > 0))
