"""The kernel that adds up the parts of contexts that are cut along their keys, by their
log-sum-exps.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.list_kernel import slot_of
from quire.models.attention.triton.shared_kernel import LOG2_E


@triton.jit(do_not_specialize=["num_seqs", "query_starts"])
def combine(
    sums_of_parts,
    log_sums,
    sinks,
    out,
    counts,
    query_starts,
    num_seqs,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    V_HEAD_SIZE: tl.constexpr,
    V_COLUMNS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Write to `out` [T, heads, V_HEAD_SIZE] the attention of the sequences of one token whose
    contexts `attend_tokens` cut into parts. The grid is (sequences, heads)."""
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    seq = tl.program_id(0)
    head = tl.program_id(1)
    before = tl.load(counts + seq)
    tiles = tl.load(counts + seq + 1) - before
    share = tl.load(counts + num_seqs + 1)
    head_tile = head // GROUP * HEAD_TILES + head % GROUP // HEADS
    begin = before * (KV_HEADS * HEAD_TILES) + head_tile * tiles
    first = begin // share
    last = (begin + tiles - 1) // share
    if (tiles == 0) | (first == last):
        return
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total += 1
    column = tl.arange(0, V_COLUMNS)
    whole = tl.zeros([V_COLUMNS], tl.float32)
    for low in range(first, last + 1, AT_ONCE):
        program = low + tl.arange(0, AT_ONCE)
        is_there = program <= last
        slot = slot_of(program, program - first)
        place = slot.to(tl.int64) * HEADS + head % GROUP % HEADS
        logs = tl.load(log_sums + place, is_there, float("-inf"))
        higher = tl.maximum(top, tl.max(logs, 0))
        fading = tl.exp2(top - higher)
        weights = tl.exp2(logs - higher)
        at = place[:, None] * V_HEAD_SIZE + column[None, :]
        mine = is_there[:, None] & (column < V_HEAD_SIZE)[None, :]
        parts = tl.load(sums_of_parts + at, mine, 0)
        whole = whole * fading + tl.sum(parts * weights[:, None], 0)
        total = total * fading + tl.sum(weights, 0)
        top = higher
    place = tl.load(query_starts + seq).to(tl.int64) * (KV_HEADS * GROUP) + head
    tl.store(
        out + place * V_HEAD_SIZE + column,
        (whole / total).to(out.dtype.element_ty),
        column < V_HEAD_SIZE,
    )
