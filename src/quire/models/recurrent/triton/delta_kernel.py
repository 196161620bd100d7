"""The gated delta rule of `RecurrentKernels`, and the gated norm behind it.

A program takes some columns of a head's state through all tokens of a sequence, in registers:
columns need no others. The order of sums is that of the compiled program, of which a model has one
for steps of any kind, so that a state is the same to the bit however the sequence is cut.
"""

import triton
import triton.language as tl

from quire.models.recurrent.triton.functions import sigmoid, softplus

NORM_EPSILON: tl.constexpr = tl.constexpr(1e-6)


@triton.jit
def _unit(vector):
    """Return a vector divided by its L2 norm."""
    return vector * tl.rsqrt(tl.sum(vector * vector, 0) + NORM_EPSILON)


@triton.jit
def _token(
    query,
    key,
    value,
    decay,
    beta,
    token,
    is_there,
    query_stride,
    key_stride,
    value_stride,
    decay_stride,
    beta_stride,
    row,
    column,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    IS_BY_CHANNEL: tl.constexpr,
):
    """Load the inputs of a token for a head and its columns, zeros where it is not there."""
    at = tl.cast(token, tl.int64)
    in_key = (row < KEY_SIZE) & is_there
    q = tl.load(query + at * query_stride + row, in_key, 0)
    k = tl.load(key + at * key_stride + row, in_key, 0)
    v = tl.load(value + at * value_stride + column, (column < VALUE_SIZE) & is_there, 0)
    if IS_BY_CHANNEL:
        d = tl.load(decay + at * decay_stride + row, in_key, 0)
    else:
        d = tl.load(decay + at * decay_stride, is_there, 0)
    b = tl.load(beta + at * beta_stride, is_there, 0)
    return q, k, v, d, b


@triton.jit(
    do_not_specialize=[
        *("query", "key", "value", "decay", "beta", "step_bias", "log_rates", "states", "out"),
        *("starts", "reads", "writes", "sequences", "query_stride", "key_stride", "value_stride"),
        *("decay_stride", "beta_stride", "state_stride", "beta_scale"),
    ]
)
def apply_delta_rule(
    query,
    key,
    value,
    decay,
    beta,
    step_bias,
    log_rates,
    states,
    out,
    starts,
    reads,
    writes,
    sequences,
    query_stride,
    key_stride,
    value_stride,
    decay_stride,
    beta_stride,
    state_stride,
    beta_scale,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCALE: tl.constexpr,
    IS_BY_CHANNEL: tl.constexpr,
    HAS_GATES: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write the outputs of a sequence for some columns of a head, and its states at the ends of its
    pieces. SHARED heads have a key head in common. With HAS_GATES, `decay` and `beta` are those
    before their functions. The grid is the sequences, the heads, and slices of COLUMNS."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    piece = tl.load(sequences + seq)
    last = tl.load(sequences + seq + 1)
    begin = tl.load(starts + piece)
    end = tl.load(starts + last)
    read = tl.load(reads + piece, piece < last, 0)
    inside = (row < KEY_SIZE)[:, None] & (column < VALUE_SIZE)[None, :]
    place = (head * KEY_SIZE + row)[:, None] * VALUE_SIZE + column[None, :]
    state = tl.load(states + read.to(tl.int64) * state_stride + place, inside & (read > 0), 0)
    query += head // SHARED * KEY_SIZE
    key += head // SHARED * KEY_SIZE
    value += head * VALUE_SIZE
    decay += head * (KEY_SIZE if IS_BY_CHANNEL else 1)
    beta += head
    if HAS_GATES:
        bias = tl.load(step_bias + head).to(tl.float32)
        rate = tl.exp(tl.load(log_rates + head).to(tl.float32))
    q, k, v, d, b = _token(
        query,
        key,
        value,
        decay,
        beta,
        begin,
        begin < end,
        query_stride,
        key_stride,
        value_stride,
        decay_stride,
        beta_stride,
        row,
        column,
        KEY_SIZE,
        VALUE_SIZE,
        IS_BY_CHANNEL,
    )
    for index in range(piece, last):
        stop = tl.load(starts + index + 1)
        for token in range(begin, stop):
            queries = _unit(q.to(tl.float32)) * SCALE
            keys = _unit(k.to(tl.float32))
            values = v.to(tl.float32)
            kept = d.to(tl.float32)
            share = b.to(tl.float32)
            # the next token's inputs come while this one is computed
            q, k, v, d, b = _token(
                query,
                key,
                value,
                decay,
                beta,
                token + 1,
                token + 1 < end,
                query_stride,
                key_stride,
                value_stride,
                decay_stride,
                beta_stride,
                row,
                column,
                KEY_SIZE,
                VALUE_SIZE,
                IS_BY_CHANNEL,
            )
            if HAS_GATES:
                kept = -rate * softplus(kept + bias)
                share = sigmoid(share).to(STORED).to(tl.float32) * beta_scale
            kept = tl.exp(kept)
            state *= kept[:, None] if IS_BY_CHANNEL else kept
            change = share * (values - tl.sum(state * keys[:, None], 0))
            state += keys[:, None] * change[None, :]
            found = tl.sum(state * queries[:, None], 0)
            target = out + (tl.cast(token, tl.int64) * HEADS + head) * VALUE_SIZE + column
            tl.store(target, found.to(STORED), column < VALUE_SIZE)
        begin = stop
        write = tl.load(writes + index)
        target = states + write.to(tl.int64) * state_stride + place
        tl.store(target, state, inside & (write > 0))


@triton.jit(do_not_specialize=["heads", "gate", "norm", "out", "num_heads", "gate_stride"])
def norm_heads(
    heads,
    gate,
    norm,
    out,
    epsilon,
    num_heads,
    gate_stride,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_PRODUCT_ROUNDED: tl.constexpr,
    STORED: tl.constexpr,
):
    """Write norm * RMSNorm(heads) * SiLU(gate) of `num_heads` heads, HEADS of them a token. The
    grid is tiles of AT_ONCE heads."""
    head = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    column = tl.arange(0, COLUMNS)
    mine = (head < num_heads)[:, None] & (column < SIZE)[None, :]
    at = head[:, None] * SIZE + column[None, :]
    x = tl.load(heads + at, mine, 0).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)[:, None]
    scale = tl.load(norm + column, column < SIZE, 0).to(tl.float32)
    x = x.to(STORED).to(tl.float32) * scale[None, :]
    if IS_PRODUCT_ROUNDED:
        x = x.to(STORED).to(tl.float32)
    source = gate + (head // HEADS * gate_stride + head % HEADS * SIZE)[:, None] + column[None, :]
    g = tl.load(source, mine, 0).to(tl.float32)
    tl.store(out + at, (x * (g * sigmoid(g))).to(STORED), mine)
