"""Kernels at both ends of a layer of experts: `route` sorts the pairs of a token and an expert by
expert, and `combine` adds up what a token's experts say.

A pair's number is token * top_k + rank. A pair whose expert is not one of this layer's is passed
over by both. Nothing depends on the order in which programs run.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_pairs"])
def route(expert_ids, counts, starts, order, num_pairs, PAIRS: tl.constexpr):
    """Write to `order` [P] the pairs sorted by expert, rising within one, and to `counts` and
    `starts` [experts] how many each expert has, and where they start. The grid is the experts: each
    counts its own and those before it."""
    expert = tl.program_id(0)
    some = tl.arange(0, PAIRS)
    mine = tl.zeros([PAIRS], tl.int32)
    before = tl.zeros([PAIRS], tl.int32)
    for low in range(0, num_pairs, PAIRS):
        chosen = tl.load(expert_ids + low + some, low + some < num_pairs, -1)
        mine += (chosen == expert).to(tl.int32)
        before += ((chosen >= 0) & (chosen < expert)).to(tl.int32)
    count = tl.sum(mine, 0)
    place = tl.sum(before, 0)
    tl.store(counts + expert, count)
    tl.store(starts + expert, place)
    if count == 0:
        return
    for low in range(0, num_pairs, PAIRS):
        is_mine = tl.load(expert_ids + low + some, low + some < num_pairs, -1) == expert
        rank = tl.cumsum(is_mine.to(tl.int32), 0)
        tl.store(order + place + rank - 1, low + some, is_mine)
        place += tl.sum(is_mine.to(tl.int32), 0)


@triton.jit
def combine(
    products,
    expert_ids,
    weights,
    out,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write to `out` [tokens, WIDTH] the sum of a token's `products` [P, WIDTH] by their `weights`
    [P], in float32, from its first expert to its last. The grid is (tokens, tiles of columns)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for rank in range(TOP_K):
        pair = token * TOP_K + rank
        expert = tl.load(expert_ids + pair)
        is_routed = (expert >= 0) & (expert < NUM_EXPERTS)
        weight = tl.load(weights + pair, is_routed, 0).to(tl.float32)
        product = tl.load(products + pair * WIDTH + column, is_routed & (column < WIDTH), 0)
        total += product.to(tl.float32) * weight
    tl.store(out + token * WIDTH + column, total.to(out.dtype.element_ty), column < WIDTH)
