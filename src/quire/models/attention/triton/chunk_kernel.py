"""The kernel of attention for chunks of several tokens, over block tables with an online softmax
(arXiv 2205.14135).

A program has the rows of one K/V head: tokens of one sequence times query heads of the group. Keys
are met from the first that its first token sees to the last that its last one sees, and nothing
else is looked at, neither of the store nor of the block table. Tiles of keys that some tokens see
in part are met first, and masked; those that all see whole come after them, and have no masks.
Scores are in powers of two.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.shared_kernel import LOG2_E, first_visible, read, tanh
from quire.models.attention.triton.widen_kernel import LEAST_SCALE, read_scales, weigh


@triton.jit
def _find(query_starts, num_seqs, tile, TOKENS: tl.constexpr):
    """Return the sequence to which `tile` belongs. Sequence s has the tiles from query_starts[s] //
    TOKENS + s on: enough for its tokens, and at most one too many."""
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        is_later = tl.load(query_starts + middle) // TOKENS + middle <= tile
        low = tl.where(is_later, middle, low)
        high = tl.where(is_later, high, middle)
    return low


@triton.jit
def _find_rows(
    table_row, positions, seen, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Return int32 [N], the rows of a store's tensors that have the vectors of `kv_head` at the
    `positions` [N] of the sequence whose row of the block table begins at `table_row`: half the
    registers of int64."""
    if seen is None:
        block = tl.load(table_row + positions // BLOCK_SIZE)
    else:
        block = tl.load(table_row + positions // BLOCK_SIZE, seen, 0)
    return (block * BLOCK_SIZE + positions % BLOCK_SIZE) * KV_HEADS + kv_head


@triton.jit(do_not_specialize=["num_seqs", "table_stride", "query_starts", "context_lens", "table"])
def attend_chunks(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    sinks,
    out,
    query_starts,
    context_lens,
    table,
    num_seqs,
    table_stride,
    token_stride,
    head_stride,
    scale,
    cap,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    V_HEAD_SIZE: tl.constexpr,
    K_MAIN: tl.constexpr,
    K_REST: tl.constexpr,
    V_COLUMNS: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW_SIZE: tl.constexpr,
    CHUNK_SIZE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FORMAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    IS_PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    COPIES: tl.constexpr,
    HAS_WHOLE: tl.constexpr,
):
    """Write to `out` [T, heads, V_HEAD_SIZE] the attention of the sequences that have several
    tokens in this step. The grid is (tiles, K/V heads x tiles of HEADS). VALUE_STRIDE 0 says that
    the value is the key's first K_MAIN columns. Without HAS_WHOLE all tiles are masked.

    `scale` makes scores powers of two, or, with HAS_CAP, what `tanh` takes; `cap` does it then.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest contexts of a chunk start first
    seq = _find(query_starts, num_seqs, tile, TOKENS)
    first = (tile - tl.load(query_starts + seq) // TOKENS - seq) * TOKENS
    start = tl.load(query_starts + seq)
    num_new = tl.load(query_starts + seq + 1) - start
    if (first >= num_new) | (num_new == 1):
        return
    num_past = tl.load(context_lens + seq) - num_new
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    row = tl.arange(0, ROWS)
    token = first + row // HEADS
    head = tl.program_id(1) % HEAD_TILES * HEADS + row % HEADS
    is_live = (row < TOKENS * HEADS) & (token < num_new) & (head < GROUP)
    head += kv_head * GROUP
    position = num_past + token
    first_seen = first_visible(position, WINDOW_SIZE, CHUNK_SIZE)

    place = (start + token).to(tl.int64) * token_stride + head.to(tl.int64) * head_stride
    column = tl.arange(0, K_MAIN)
    mine = is_live[:, None] & (column < HEAD_SIZE)[None, :]
    main = tl.load(query + place[:, None] + column[None, :], mask=mine, other=0).to(COMPUTE)
    if K_REST > 0:
        column = K_MAIN + tl.arange(0, K_REST)
        mine = is_live[:, None] & (column < HEAD_SIZE)[None, :]
        rest = tl.load(query + place[:, None] + column[None, :], mask=mine, other=0).to(COMPUTE)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + head, mask=is_live, other=0).to(tl.float32) * LOG2_E
        total += 1
    sums = tl.zeros([ROWS, V_COLUMNS], tl.float32)
    peak = tl.full([], LEAST_SCALE if COMPUTE == tl.float16 else 1.0, tl.float32)

    table_row = table + seq.to(tl.int64) * table_stride
    begin = first_visible(num_past + first, WINDOW_SIZE, CHUNK_SIZE)
    end = num_past + tl.minimum(first + TOKENS, num_new)
    num_tiles = (end - begin + KEYS - 1) // KEYS
    num_before = 0
    num_whole = 0
    if HAS_WHOLE:
        num_before = (first_visible(end - 1, WINDOW_SIZE, CHUNK_SIZE) - begin + KEYS - 1) // KEYS
        num_whole = tl.maximum((num_past + first + 1 - begin) // KEYS - num_before, 0)
    factor = cap if HAS_CAP else scale
    for IS_WHOLE in tl.static_range(2 if HAS_WHOLE else 1):
        for index in range(num_whole if IS_WHOLE else num_tiles - num_whole):
            if IS_WHOLE:
                nth = num_before + index
            else:
                nth = tl.where(index < num_before, index, num_whole + index)
            other = begin + nth * KEYS + tl.arange(0, KEYS)
            seen = None if IS_WHOLE else other < end
            rows = _find_rows(table_row, other, seen, kv_head, KV_HEADS, BLOCK_SIZE)
            key = read(keys, rows, seen, HEAD_SIZE, 0, K_MAIN, FORMAT, COMPUTE, IS_PACKED)
            scores = tl.dot(main, tl.trans(key), input_precision="ieee")
            if K_REST > 0:
                more = read(keys, rows, seen, HEAD_SIZE, K_MAIN, K_REST, FORMAT, COMPUTE, IS_PACKED)
                scores = tl.dot(rest, tl.trans(more), scores, input_precision="ieee")
            if FORMAT != 0:
                scores *= read_scales(key_scales, rows, seen, FORMAT, COPIES)[None, :]
            if HAS_CAP:
                scores = tanh(scores * scale)
            if not IS_WHOLE:
                is_seen = other[None, :] <= position[:, None]
                if WINDOW_SIZE > 0 or CHUNK_SIZE > 0:
                    is_seen = is_seen & (other[None, :] >= first_seen[:, None])
                scores = tl.where(is_seen, scores, float("-inf"))

            higher = tl.maximum(top, tl.max(scores, 1) * factor)
            base = higher if IS_WHOLE else tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores * factor - base[:, None])
            fading = tl.exp2(top - base)
            total = total * fading + tl.sum(weights, 1)
            top = higher
            if VALUE_STRIDE == 0:
                value = key
            else:
                value = read(
                    values, rows, seen, VALUE_STRIDE, 0, V_COLUMNS, FORMAT, COMPUTE, IS_PACKED
                )
            if FORMAT != 0:
                scales = read_scales(value_scales, rows, seen, FORMAT, COPIES)
                weights, fading, peak = weigh(weights, fading, scales, peak, COMPUTE)
            sums = tl.dot(
                weights.to(COMPUTE), value, sums * fading[:, None], input_precision="ieee"
            )

    some = tl.where(total == 0, 1.0, total)
    sums = sums / some[:, None]
    if FORMAT != 0:
        sums *= peak
    place = (start + token).to(tl.int64) * (KV_HEADS * GROUP) + head
    column = tl.arange(0, V_COLUMNS)
    mine = is_live[:, None] & (column < V_HEAD_SIZE)[None, :]
    at = out + place[:, None] * V_HEAD_SIZE + column[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), mine)
