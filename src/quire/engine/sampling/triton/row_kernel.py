"""Reads rows of logits for the sampling kernel: their blocks, the ranks of logits, and weights, all
as `tiles.py` and `weights.py` define them.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

TILE: tl.constexpr = tl.constexpr(128)
TICKS: tl.constexpr = tl.constexpr(2.0**23)
"""The weight of the most likely token of a tile, in the ticks of that tile."""
LEAST_EXPONENT: tl.constexpr = tl.constexpr(-150.0)
"""Its exponential is 0; quotients below it, which may be infinite, are taken for it."""
LEAST_FLOAT: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def rank_of(logit):
    """Return an int32 that is smaller for larger logits, and one for both zeros."""
    bits = (0.0 - logit).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def logit_of(rank):
    """Return the float32 that has this rank."""
    return 0.0 - (rank ^ ((rank >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def likelihood(below, temperature, IS_INTERPRETED: tl.constexpr):
    """Return exp(below / temperature) with the exponential and the rounded quotients of torch on a
    GPU; the interpreter has neither.

    One division serves all: what a product leaves corrects each quotient to the nearest (Markstein,
    "Computation of elementary functions on the IBM RISC System/6000 processor", IBM Journal of
    Research and Development 34-1, 1990)."""
    if IS_INTERPRETED:
        found = tl.exp(tl.div_rn(below, temperature))
    else:
        inverse = tl.div_rn(1.0, temperature)
        quotient = below * inverse
        rest = tl.fma(-quotient, temperature, below)
        nearest = tl.fma(rest, inverse, quotient)
        found = libdevice.exp(tl.where(quotient > LEAST_EXPONENT, nearest, LEAST_EXPONENT))
    return found


@triton.jit
def weight_of(logit, peak, temperature, UNIT: tl.constexpr, IS_INTERPRETED: tl.constexpr):
    """Return the weights of logits, int64. UNIT is that of the most likely token."""
    weight = tl.floor(likelihood(logit - peak, temperature, IS_INTERPRETED) * UNIT)
    return weight.to(tl.int64)


@triton.jit
def load_block(row, start, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the BLOCK logits from `start` on in float32, -inf beyond the vocabulary."""
    index = start + tl.arange(0, BLOCK)
    return tl.load(row + index, index < VOCAB, float("-inf")).to(tl.float32)


@triton.jit
def find_peak(row, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest logit of a row, the lowest id that has it, and whether the row is finite:
    it holds no NaN and no +inf, and something above -inf."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    found = lane
    num_bad = tl.zeros([BLOCK], tl.int32)
    for start in range(0, VOCAB, BLOCK):
        logits = load_block(row, start, VOCAB, BLOCK)
        is_better = logits > best
        best = tl.where(is_better, logits, best)
        found = tl.where(is_better, start + lane, found)
        num_bad += tl.where(logits < float("inf"), 0, 1)
    peak = tl.max(best, 0)
    token_id = tl.min(tl.where(best == peak, found, VOCAB), 0)
    return peak, token_id, (tl.sum(num_bad, 0) == 0) & (peak > float("-inf"))


@triton.jit
def load_tiles(row, first, VOCAB: tl.constexpr, TILES: tl.constexpr):
    """Return TILES tiles of logits [TILES, TILE] in float32 from tile `first` on, and what is
    subtracted from each: its largest logit, or something finite."""
    index = (first + tl.arange(0, TILES))[:, None] * TILE + tl.arange(0, TILE)[None, :]
    logits = tl.load(row + index, index < VOCAB, float("-inf")).to(tl.float32)
    return logits, tl.maximum(tl.max(logits, 1), LEAST_FLOAT)


@triton.jit
def ticks_of(below, temperature, IS_INTERPRETED: tl.constexpr):
    """Return the weights of logits so far below their tile's largest, in ticks, int32."""
    return (likelihood(below, temperature, IS_INTERPRETED) * TICKS + 0.5).to(tl.int32)


@triton.jit
def weigh_tiles(
    row,
    first,
    peak,
    temperature,
    VOCAB: tl.constexpr,
    TILES: tl.constexpr,
    UNIT: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Return what TILES tiles from `first` on weigh, int64, as `weights.weigh_tiles` does."""
    logits, tops = load_tiles(row, first, VOCAB, TILES)
    ticks = tl.sum(ticks_of(logits - tops[:, None], temperature, IS_INTERPRETED), 1)
    scale = likelihood(tops - peak, temperature, IS_INTERPRETED).to(tl.float64)
    return tl.floor(ticks.to(tl.float64) * scale * (UNIT / TICKS)).to(tl.int64)
