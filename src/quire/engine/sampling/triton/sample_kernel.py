"""One launch samples a token of each row of logits: `truncation.py` in one program a row, without a
sort or an atomic.

Weights are integers, so that any order of adding gives the same sums, and the tokens that are kept
are those of `truncation.py`, equal ones by rising id.
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
from quire.engine.sampling.triton.search_kernel import LAST_RANK, SLOTS, find_rank

COUNTED_SPREAD: tl.constexpr = tl.constexpr(16.0)
"""Most top_k end so far below the largest logit."""
NUM_PARAMS: tl.constexpr = tl.constexpr(5)
"""Columns of `row_params.pack_params`."""


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
        last, earlier = find_rank(
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
                cut, earlier = find_rank(
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
