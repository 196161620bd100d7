"""The kernel of attention for chunks of one token, over block tables with an online softmax
(arXiv 2205.14135). `combine` adds up the parts of contexts that are cut along their keys.

A program has query heads of one K/V head at a time. Keys are met from the first that the token sees
on, and nothing else is looked at, neither of the store nor of the block table. Scores are in powers
of two.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.list_kernel import part_at, share_of, slot_of
from quire.models.attention.triton.shared_kernel import (
    LOG2_E,
    first_visible,
    read,
    read_words,
    tanh,
)
from quire.models.attention.triton.widen_kernel import (
    LEAST_SCALE,
    read_scales,
    weigh,
    widen_words,
)


@triton.jit(do_not_specialize=["num_seqs", "table_stride", "query_starts", "context_lens", "table"])
def attend_tokens(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    sinks,
    out,
    sums_of_parts,
    log_sums,
    counts,
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
    HAS_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS: tl.constexpr,
    IS_SHARED: tl.constexpr,
):
    """Write to `out` [T, heads, V_HEAD_SIZE] the attention of the sequences that have one token in
    this step. VALUE_STRIDE 0 says that the value is the key's first K_MAIN columns. With HAS_WORDS
    values are read four columns at once.

    Without IS_SHARED the grid is (sequences, K/V heads x tiles of HEADS). With it, it is programs
    that share the work as the list `counts` has it: parts of contexts go to `sums_of_parts` [2 x
    programs, HEADS, V_HEAD_SIZE] and `log_sums`, their weights, [2 x programs, HEADS], both
    float32, and are brought together by `combine`.

    `scale` makes scores powers of two, or, with HAS_CAP, what `tanh` takes; `cap` does it then.
    """
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    work = 0
    work_end = 1
    if IS_SHARED:
        work, work_end = share_of(counts, num_seqs, tl.program_id(0), KV_HEADS * HEAD_TILES)
    elif (
        tl.load(query_starts + tl.program_id(0) + 1) - tl.load(query_starts + tl.program_id(0)) != 1
    ):
        return
    while work < work_end:
        seq = tl.program_id(0)
        head_tile = tl.program_id(1)
        if IS_SHARED:
            seq, head_tile, skipped, taken, is_whole = part_at(
                counts, num_seqs, work, work_end, KV_HEADS * HEAD_TILES
            )
        start = tl.load(query_starts + seq)
        position = tl.load(context_lens + seq) - 1
        kv_head = head_tile // HEAD_TILES
        row = tl.arange(0, ROWS)
        head = head_tile % HEAD_TILES * HEADS + row
        is_live = (row < HEADS) & (head < GROUP)
        head += kv_head * GROUP

        place = start.to(tl.int64) * token_stride + head.to(tl.int64) * head_stride
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
            has_sink = is_live & is_whole if IS_SHARED else is_live
            top = tl.load(sinks + head, has_sink, float("-inf")).to(tl.float32) * LOG2_E
            total = tl.where(has_sink, 1.0, 0.0)
        sums = tl.zeros([ROWS, V_COLUMNS // 4 if HAS_WORDS else V_COLUMNS], tl.float32)
        sums_1 = sums
        sums_2 = sums
        sums_3 = sums
        peak = tl.full([], LEAST_SCALE if COMPUTE == tl.float16 else 1.0, tl.float32)

        begin = first_visible(position, WINDOW_SIZE, CHUNK_SIZE)
        end = position + 1
        if IS_SHARED:
            begin += skipped * KEYS
            end = tl.minimum(end, begin + taken * KEYS)
        for low in range(begin, end, KEYS):
            other = low + tl.arange(0, KEYS)
            seen = other < end
            block = tl.load(table + seq.to(tl.int64) * table_stride + other // BLOCK_SIZE, seen, 0)
            slot = block.to(tl.int64) * BLOCK_SIZE + other % BLOCK_SIZE
            rows = slot * KV_HEADS + kv_head
            key = read(keys, rows, seen, HEAD_SIZE, 0, K_MAIN, FORMAT, COMPUTE, IS_PACKED)
            scores = tl.dot(main, tl.trans(key), input_precision="ieee")
            if K_REST > 0:
                more = read(keys, rows, seen, HEAD_SIZE, K_MAIN, K_REST, FORMAT, COMPUTE, IS_PACKED)
                scores = tl.dot(rest, tl.trans(more), scores, input_precision="ieee")
            if FORMAT != 0:
                scores *= (read_scales(key_scales, rows, seen, FORMAT, 1) * scale)[None, :]
            else:
                scores *= scale
            if HAS_CAP:
                scores = tanh(scores) * cap
            scores = tl.where(seen[None, :], scores, float("-inf"))

            higher = tl.maximum(top, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - base[:, None])
            fading = tl.exp2(top - base)
            total = total * fading + tl.sum(weights, 1)
            top = higher
            fading = fading[:, None]
            if FORMAT != 0:
                scales = read_scales(value_scales, rows, seen, FORMAT, 1)
                weights, fading, peak = weigh(weights, fading, scales, peak, COMPUTE)
            weights = weights.to(COMPUTE)
            if HAS_WORDS:
                words = read_words(values, rows, seen, VALUE_STRIDE, V_COLUMNS)
                v0, v1, v2, v3 = widen_words(words, FORMAT, COMPUTE, IS_PACKED)
                sums = tl.dot(weights, v0, sums * fading, input_precision="ieee")
                sums_1 = tl.dot(weights, v1, sums_1 * fading, input_precision="ieee")
                sums_2 = tl.dot(weights, v2, sums_2 * fading, input_precision="ieee")
                sums_3 = tl.dot(weights, v3, sums_3 * fading, input_precision="ieee")
            else:
                if VALUE_STRIDE == 0:
                    value = key
                else:
                    value = read(
                        values, rows, seen, VALUE_STRIDE, 0, V_COLUMNS, FORMAT, COMPUTE, IS_PACKED
                    )
                sums = tl.dot(weights, value, sums * fading, input_precision="ieee")
        if HAS_WORDS:
            sums = tl.join(tl.join(sums, sums_2), tl.join(sums_1, sums_3))
            sums = tl.reshape(sums, [ROWS, V_COLUMNS])

        some = tl.where(total == 0, 1.0, total)
        sums = sums / some[:, None]
        if FORMAT != 0:
            sums *= peak
        column = tl.arange(0, V_COLUMNS)
        mine = is_live[:, None] & (column < V_HEAD_SIZE)[None, :]
        if IS_SHARED:
            place = slot_of(tl.program_id(0), skipped).to(tl.int64) * HEADS + row
            log_sum = tl.where(total == 0, float("-inf"), top + tl.log2(some))
            tl.store(log_sums + place, log_sum, is_live & (is_whole == 0))
            at = sums_of_parts + place[:, None] * V_HEAD_SIZE + column[None, :]
            tl.store(at, sums, mine & (is_whole == 0))
            mine = mine & is_whole
            work += taken
        else:
            work += 1
        place = start.to(tl.int64) * (KV_HEADS * GROUP) + head
        at = out + place[:, None] * V_HEAD_SIZE + column[None, :]
        tl.store(at, sums.to(out.dtype.element_ty), mine)
