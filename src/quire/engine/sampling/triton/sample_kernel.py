"""One launch samples a token of each row of logits: `truncation.py` in one program a row, without a
sort, a scratch memory or an atomic.

The kept tokens are found by a search over the ranks of logits. A pass over the row weighs the
tokens up to each of PIVOTS ranks, and the search goes on between two of them. Weights are integers,
so that any order of adding gives the same sums, and the tokens that are kept are those of
`truncation.py`, equal ones by rising id. Passes are few: the first cut the range of logits, which
is known from the temperature, in equal parts, those after them the range of ranks, and every pass
brings both ends to tokens that are there. Kim et al. search by pivots likewise in FlashInfer's
sampling kernels (arXiv 2501.01005), at random and until a draw is accepted.
"""

import triton
import triton.language as tl

from quire.engine.sampling.triton.row_kernel import (
    TILE,
    find_peak,
    load_block,
    load_tiles,
    logit_of,
    rank_of,
    ticks_of,
    weigh_tiles,
    weight_of,
)

LARGEST_RANK: tl.constexpr = tl.constexpr(0x7FFFFFFF)
LAST_RANK: tl.constexpr = tl.constexpr(0x7F800000)
"""The rank of -inf."""
COUNTED_SPREAD: tl.constexpr = tl.constexpr(16.0)
"""How far below the largest logit most top_k end."""
EVEN_PASSES: tl.constexpr = tl.constexpr(3)
"""The passes of a search that cut a range of logits in equal parts."""
PIVOTS: tl.constexpr = tl.constexpr(6)
SLOTS: tl.constexpr = tl.constexpr(8)
"""Tokens that each lane of a block lists for the passes to come."""
NUM_PARAMS: tl.constexpr = tl.constexpr(5)
"""Columns of `row_params.pack_params`."""


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
def _find_rank(
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


@triton.jit
def _weigh_kept(
    row,
    cut,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the weight of the tokens of ranks before `cut`, int64, and how many have that
    rank."""
    sums = tl.zeros([BLOCK], tl.int64)
    num_at = tl.zeros([BLOCK], tl.int32)
    for start in range(0, VOCAB, BLOCK):
        logits = load_block(row, start, VOCAB, BLOCK)
        ranks = rank_of(logits)
        weights = weight_of(logits, peak, temperature, UNIT, IS_INTERPRETED)
        sums += tl.where(ranks < cut, weights, 0)
        num_at += (ranks == cut).to(tl.int32)
    return tl.sum(sums, 0), tl.sum(num_at, 0)


@triton.jit
def _pick_kept(
    row,
    cut,
    num_at,
    total,
    noise,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the id at `noise` of the `total` weight of the tokens of ranks before `cut` and of the
    first `num_at` that have that rank."""
    point = tl.minimum(noise * total.to(tl.float64), (total - 1).to(tl.float64)).to(tl.int64)
    before = tl.zeros([], tl.int64)
    num_seen = 0
    token_id = 0
    start = 0
    while start < VOCAB:
        logits = load_block(row, start, VOCAB, BLOCK)
        ranks = rank_of(logits)
        is_at = (ranks == cut).to(tl.int32)
        num_new = tl.sum(is_at, 0)
        is_kept = ranks <= cut
        if num_seen + num_new > num_at:
            is_kept = (ranks < cut) | ((is_at > 0) & (num_seen + tl.cumsum(is_at, 0) <= num_at))
        weights = weight_of(logits, peak, temperature, UNIT, IS_INTERPRETED)
        weights = tl.where(is_kept, weights, 0)
        end = before + tl.sum(weights, 0)
        if end > point:
            ends = before + tl.cumsum(weights, 0)
            token_id = start + tl.sum((ends <= point).to(tl.int32), 0)
            start = VOCAB
        before = end
        num_seen += num_new
        start += BLOCK
    return token_id


@triton.jit
def _total_of_tiles(
    row,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the weight of all tokens, summed by tiles, int64."""
    sums = tl.zeros([TILES], tl.int64)
    for first in range(0, tl.cdiv(VOCAB, TILE), TILES):
        sums += weigh_tiles(row, first, peak, temperature, VOCAB, TILES, UNIT, IS_INTERPRETED)
    return tl.sum(sums, 0)


@triton.jit
def _pick_any(
    row,
    noise,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the id at `noise` of the weight of all tokens: a tile first, then a token of it."""
    total = _total_of_tiles(row, peak, temperature, VOCAB, TILES, UNIT, IS_INTERPRETED)
    point = tl.minimum(noise * total.to(tl.float64), (total - 1).to(tl.float64))
    before = tl.zeros([], tl.int64)
    tile = 0
    within = noise
    first = 0
    while first < tl.cdiv(VOCAB, TILE):
        sums = weigh_tiles(row, first, peak, temperature, VOCAB, TILES, UNIT, IS_INTERPRETED)
        end = before + tl.sum(sums, 0)
        if end.to(tl.float64) > point:
            ends = before + tl.cumsum(sums, 0)
            index = tl.sum((ends.to(tl.float64) <= point).to(tl.int32), 0)
            own = tl.sum(tl.where(tl.arange(0, TILES) == index, sums, 0), 0)
            start = tl.sum(tl.where(tl.arange(0, TILES) == index, ends, 0), 0) - own
            within = (point - start.to(tl.float64)) / own.to(tl.float64)
            tile = first + index
            first = VOCAB
        before = end
        first += TILES
    logits, tops = load_tiles(row, tile, VOCAB, 1)
    ticks = tl.sum(ticks_of(logits - tops[:, None], temperature, IS_INTERPRETED), 0)
    num_ticks = tl.sum(ticks, 0).to(tl.float64)
    tick = tl.minimum(within * num_ticks, num_ticks - 1.0)
    return tile * TILE + tl.sum((tl.cumsum(ticks, 0).to(tl.float64) <= tick).to(tl.int32), 0)


@triton.jit
def _sample_row(
    row,
    params,
    listed,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    SPREAD: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return the id that a row samples which is finite and has a temperature."""
    top_k = tl.load(params + 2).to(tl.int32)
    log_min_p = tl.load(params + 4)
    least = (peak.to(tl.float64) + temperature.to(tl.float64) * log_min_p).to(tl.float32)
    cut = rank_of(least)
    num_at = tl.full([], VOCAB, tl.int32)
    is_cut = (top_k < VOCAB) | (log_min_p > float("-inf"))
    if top_k < VOCAB:
        last, earlier = _find_rank(
            *(
                row,
                listed,
                tl.full([], LAST_RANK, tl.int32),
                top_k,
                peak,
                temperature,
                COUNTED_SPREAD,
            ),
            *(True, VOCAB, LANES, UNIT, IS_INTERPRETED),
        )
        num_at = tl.where(last <= cut, top_k - earlier.to(tl.int32), num_at)
        cut = tl.minimum(cut, last)
    top_p = tl.load(params + 3)
    if is_cut | (top_p < 1.0):
        total, found = _weigh_kept(row, cut, peak, temperature, VOCAB, BLOCK, UNIT, IS_INTERPRETED)
        own = weight_of(logit_of(cut), peak, temperature, UNIT, IS_INTERPRETED)
        num_at = tl.minimum(num_at, found)
        total += num_at * own
        if top_p < 1.0:
            whole = total
            if is_cut == 0:
                whole = _total_of_tiles(row, peak, temperature, VOCAB, TILES, UNIT, IS_INTERPRETED)
            wanted = tl.maximum(tl.ceil(top_p * whole.to(tl.float64)).to(tl.int64), 1)
            if wanted <= total:
                spread = temperature * SPREAD
                weightless = rank_of(peak - spread)
                cut, earlier = _find_rank(
                    *(row, listed, tl.minimum(cut, weightless), wanted, peak, temperature, spread),
                    *(False, VOCAB, LANES, UNIT, IS_INTERPRETED),
                )
                own = weight_of(logit_of(cut), peak, temperature, UNIT, IS_INTERPRETED)
                own = tl.maximum(own, 1)
                num_at = ((wanted - earlier + own - 1) // own).to(tl.int32)
                total = earlier + num_at * own
        token_id = _pick_kept(
            *(row, cut, num_at, total, tl.load(params), peak, temperature),
            *(VOCAB, BLOCK, UNIT, IS_INTERPRETED),
        )
    else:
        token_id = _pick_any(
            row, tl.load(params), peak, temperature, VOCAB, TILES, UNIT, IS_INTERPRETED
        )
    return token_id


@triton.jit
def sample(
    logits,
    order,
    params,
    listed,
    token_ids,
    is_finite,
    row_stride,
    IS_ORDERED: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    SPREAD: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Write an id for each row, 0 where it is not finite, and whether it is. The grid is the rows
    in the order of sampling, which `params` are in; `order` has their places in the results. Logits
    are in the order of sampling too if IS_ORDERED, else where their results are."""
    program = tl.program_id(0).to(tl.int64)
    place = tl.load(order + program)
    params += program * NUM_PARAMS
    source = program if IS_ORDERED else place
    row = logits + source * row_stride
    peak, token_id, finite = find_peak(row, VOCAB, BLOCK)
    temperature = tl.load(params + 1).to(tl.float32)
    if finite & (temperature > 0):
        token_id = _sample_row(
            *(row, params, listed + program * SLOTS * LANES, peak, temperature),
            *(VOCAB, BLOCK, LANES, TILES, UNIT, SPREAD, IS_INTERPRETED),
        )
    tl.store(token_ids + place, tl.where(finite, token_id, 0).to(tl.int64))
    tl.store(is_finite + place, finite.to(tl.int64))
