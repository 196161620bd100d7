"""A kernel that writes new keys and values to their slots, encoded as the store keeps them."""

import triton
import triton.language as tl

from quire.models.attention.triton.number_kernel import choose_scale, encode


@triton.jit
def _write(
    new,
    elements,
    scales,
    slots,
    num_tokens,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FORMAT: tl.constexpr,
    PEAK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token = row // HEADS
    slot = tl.load(slots + token, token < num_tokens, -1)
    is_live = slot >= 0
    head = row % HEADS
    column = tl.arange(0, COLUMNS)
    mine = is_live[:, None] & (column < WIDTH)[None, :]
    at = token * token_stride + head * head_stride
    vector = tl.load(new + at[:, None] + column[None, :], mask=mine, other=0)
    to = slot * HEADS + head
    if FORMAT != 0:
        vector = vector.to(tl.float32)
        bits = choose_scale(vector, PEAK)
        scale = (bits << 16).to(tl.float32, bitcast=True)
        tl.store(scales + to, bits.to(tl.int16).to(tl.bfloat16, bitcast=True), is_live)
        vector = encode(vector, scale[:, None], FORMAT, PEAK)
    tl.store(elements + to[:, None] * WIDTH + column[None, :], vector, mine)


@triton.jit(do_not_specialize=["num_tokens", "slots"])
def write(
    key,
    value,
    keys,
    values,
    key_scales,
    value_scales,
    slots,
    num_tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    V_HEAD_SIZE: tl.constexpr,
    K_COLUMNS: tl.constexpr,
    V_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FORMAT: tl.constexpr,
    PEAK: tl.constexpr,
):
    """Write the keys and values of T tokens to their slots; a token whose slot is negative is
    written nowhere. With V_HEAD_SIZE 0 there are keys alone. The grid is tiles of ROWS of the T x
    HEADS vectors."""
    _write(
        key,
        keys,
        key_scales,
        slots,
        num_tokens,
        key_token_stride,
        key_head_stride,
        HEADS,
        HEAD_SIZE,
        K_COLUMNS,
        ROWS,
        FORMAT,
        PEAK,
    )
    if V_HEAD_SIZE > 0:
        _write(
            value,
            values,
            value_scales,
            slots,
            num_tokens,
            value_token_stride,
            value_head_stride,
            HEADS,
            V_HEAD_SIZE,
            V_COLUMNS,
            ROWS,
            FORMAT,
            PEAK,
        )
