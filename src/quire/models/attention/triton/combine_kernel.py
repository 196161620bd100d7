"""The kernel that adds up the parts of contexts that are cut along their keys, by their
log-sum-exps.
"""

import triton
import triton.language as tl

from quire.models.attention.triton.shared_kernel import LOG2_E


@triton.jit(do_not_specialize=["num_splits", "query_starts"])
def combine(
    sums,
    log_sums,
    sinks,
    out,
    query_starts,
    num_splits,
    HEADS: tl.constexpr,
    V_HEAD_SIZE: tl.constexpr,
    V_COLUMNS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Write to `out` [T, heads, V_HEAD_SIZE] the attention of the sequences of one token, from the
    `num_splits` parts of each, at most MAX_SPLITS. The grid is (sequences, heads)."""
    start = tl.load(query_starts + tl.program_id(0))
    if tl.load(query_starts + tl.program_id(0) + 1) - start != 1:
        return
    place = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, MAX_SPLITS)
    logs = tl.load(log_sums + place * num_splits + split, split < num_splits, float("-inf"))
    top = tl.max(logs, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2_E
        top = tl.maximum(top, sink)
    total = tl.sum(tl.exp2(logs - top), 0)
    if HAS_SINKS:
        total += tl.exp2(sink - top)

    column = tl.arange(0, V_COLUMNS)
    whole = tl.zeros([V_COLUMNS], tl.float32)
    for low in range(0, num_splits, AT_ONCE):
        some = low + tl.arange(0, AT_ONCE)
        weights = tl.load(log_sums + place * num_splits + some, some < num_splits, float("-inf"))
        at = (place * num_splits + some)[:, None] * V_HEAD_SIZE + column[None, :]
        mine = (some < num_splits)[:, None] & (column < V_HEAD_SIZE)[None, :]
        parts = tl.load(sums + at, mine, 0)
        whole += tl.sum(parts * tl.exp2(weights - top)[:, None], 0)
    place = start.to(tl.int64) * HEADS + tl.program_id(1)
    tl.store(
        out + place * V_HEAD_SIZE + column,
        (whole / total).to(out.dtype.element_ty),
        column < V_HEAD_SIZE,
    )
