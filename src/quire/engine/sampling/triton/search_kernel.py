"""Searches a row of logits for the rank where the kept tokens end.

A pass over the row weighs the tokens up to each of PIVOTS ranks, and the search goes on between two
of them. Passes are few: the first cut the range of logits, which is known from the temperature, in
equal parts, those after them the range of ranks, and every pass brings both ends to tokens that are
there. Tokens between the ends are listed on the way: once they are few, passes read the list alone.
FlashInfer's sampling kernels search by pivots likewise (arXiv 2501.01005), at random and until a
draw is accepted.
"""

import triton
import triton.language as tl

from quire.engine.sampling.triton.row_kernel import load_block, logit_of, rank_of, weight_of

LARGEST_RANK: tl.constexpr = tl.constexpr(0x7FFFFFFF)
LAST_RANK: tl.constexpr = tl.constexpr(0x7F800000)
"""The rank of -inf."""
EVEN_PASSES: tl.constexpr = tl.constexpr(3)
"""The passes of a search that cut a range of logits in equal parts."""
PIVOTS: tl.constexpr = tl.constexpr(6)
SLOTS: tl.constexpr = tl.constexpr(8)
"""Tokens that each lane of a block lists for the passes to come."""


@triton.jit
def _pivot(low, high, step, index, spread):
    """Return a rank in (low, high]: pivot `index` of PIVOTS in pass `step`. Those of even passes
    lie at most `spread` below the logit of `low`."""
    if step < EVEN_PASSES:
        top = logit_of(low)
        span = tl.minimum(top - logit_of(high), spread)
        rank = rank_of(top - span * ((index + 1) / (PIVOTS + 1)))
    else:
        width = (high.to(tl.int64) - low) * (index + 1) // (PIVOTS + 1)
        rank = (low + width).to(tl.int32)
    return tl.minimum(tl.maximum(rank, low + 1), high)


@triton.jit
def _added(sums, ranks, mass, pivots):
    """Return the sums with the mass of tokens up to each pivot added."""
    added = ()
    for index in tl.static_range(PIVOTS):
        added = added + (sums[index] + tl.where(ranks <= pivots[index], mass, 0),)
    return added


@triton.jit
def _weigh_row(
    row,
    listed,
    low,
    high,
    pivots,
    peak,
    temperature,
    BY_COUNT: tl.constexpr,
    VOCAB: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the mass of tokens up to each pivot, the smallest rank above `low` and the largest up
    to `high`, and how many ranks between them each lane has: it lists the first SLOTS of them."""
    lane = tl.arange(0, LANES)
    least = tl.full([LANES], LARGEST_RANK, tl.int32)
    most = tl.full([LANES], -LARGEST_RANK, tl.int32)
    count = tl.zeros([LANES], tl.int32)
    zeros = tl.zeros([LANES], tl.int64)
    sums = (zeros, zeros, zeros, zeros, zeros, zeros)
    ahead = load_block(row, 0, VOCAB, LANES)
    for start in range(0, VOCAB, LANES):
        logits = ahead
        ahead = load_block(row, start + LANES, VOCAB, LANES)
        ranks = rank_of(logits)
        if BY_COUNT:
            mass = (start + lane < VOCAB).to(tl.int64)
        else:
            mass = weight_of(logits, peak, temperature, UNIT, IS_INTERPRETED)
        sums = _added(sums, ranks, mass, pivots)
        least = tl.minimum(least, tl.where(ranks > low, ranks, LARGEST_RANK))
        most = tl.maximum(most, tl.where(ranks <= high, ranks, -LARGEST_RANK))
        is_between = (ranks > low) & (ranks <= high) & (start + lane < VOCAB)
        tl.store(listed + count * LANES + lane, ranks, is_between & (count < SLOTS))
        count += is_between.to(tl.int32)
    return sums, tl.min(least, 0), tl.max(most, 0), count


@triton.jit
def _weigh_listed(
    listed,
    count,
    low,
    high,
    pivots,
    peak,
    temperature,
    BY_COUNT: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the same of the tokens that were listed, `count` of each lane."""
    lane = tl.arange(0, LANES)
    least = tl.full([LANES], LARGEST_RANK, tl.int32)
    most = tl.full([LANES], -LARGEST_RANK, tl.int32)
    zeros = tl.zeros([LANES], tl.int64)
    sums = (zeros, zeros, zeros, zeros, zeros, zeros)
    for slot in range(0, tl.max(count, 0)):
        ranks = tl.load(listed + slot * LANES + lane, slot < count, LAST_RANK)
        if BY_COUNT:
            mass = (slot < count).to(tl.int64)
        else:
            mass = weight_of(logit_of(ranks), peak, temperature, UNIT, IS_INTERPRETED)
        sums = _added(sums, ranks, mass, pivots)
        least = tl.minimum(least, tl.where(ranks > low, ranks, LARGEST_RANK))
        most = tl.maximum(most, tl.where((ranks <= high) & (slot < count), ranks, -LARGEST_RANK))
    return sums, tl.min(least, 0), tl.max(most, 0)


@triton.jit
def find_rank(
    row,
    listed,
    high,
    wanted,
    peak,
    temperature,
    spread,
    BY_COUNT: tl.constexpr,
    VOCAB: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the smallest rank, int32, up to which tokens have a mass of `wanted`, 1 or more, and
    the mass before it. Tokens up to rank `high` must have as much."""
    low = rank_of(peak) - 1
    before = tl.zeros([], tl.int64)
    unlisted = tl.zeros([], tl.int64)
    count = tl.full([LANES], SLOTS + 1, tl.int32)
    step = 0
    while low + 1 < high:
        pivots = ()
        for index in tl.static_range(PIVOTS):
            pivots = pivots + (_pivot(low, high, step, index, spread),)
        if tl.max(count, 0) > SLOTS:
            unlisted = before
            sums, least, most, count = _weigh_row(
                *(row, listed, low, high, pivots, peak, temperature),
                *(BY_COUNT, VOCAB, LANES, UNIT, IS_INTERPRETED),
            )
            base = tl.zeros([], tl.int64)
        else:
            sums, least, most = _weigh_listed(
                *(listed, count, low, high, pivots, peak, temperature),
                *(BY_COUNT, LANES, UNIT, IS_INTERPRETED),
            )
            base = unlisted
        for index in tl.static_range(PIVOTS):
            up_to = base + tl.sum(sums[index], 0)
            is_short = up_to < wanted
            low = tl.where(is_short, tl.maximum(low, pivots[index]), low)
            before = tl.where(is_short, tl.maximum(before, up_to), before)
            high = tl.where(is_short, high, tl.minimum(high, pivots[index]))
        low = tl.maximum(low, least - 1)
        high = tl.minimum(high, most)
        step += 1
        tl.debug_barrier()
    return high, before
