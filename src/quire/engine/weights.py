"""Probabilities as whole numbers. exp((logit - peak) / temperature) is taken for each token by
itself and rounded; every sum after that is exact in any order, so that what a row draws cannot
depend on the rows beside it, on threads, or on the way a device reduces.
"""

import torch
from torch import Tensor

from quire.engine.tiles import TILE, Slab, Workspace

_TICK_BITS = 23
"""The likeliest token of a tile weighs 2**23 ticks: a tile of them still fits 31 bits."""
_SUM_BITS = 52
"""The weights of a row sum to less than 2**52, exact in fp64."""


def unit_of(slab: Slab) -> float:
    """The weight of a row's likeliest token; the weight 1 is 2**-34 of it at the largest
    vocabularies.
    """
    num_tiles = slab.maxima.shape[1]
    return 2.0 ** (_SUM_BITS - (num_tiles * TILE).bit_length())


def weigh(slab: Slab, logits: Tensor, temperature: Tensor) -> Tensor:
    """The weights of some `logits` [rows, any] of the slab's rows."""
    return ((logits - slab.peaks) / temperature).exp_().double().mul_(unit_of(slab)).floor_()


def weigh_tiles(slab: Slab, temperature: Tensor, space: Workspace) -> Tensor:
    """The summed weights of each tile, [rows, tiles]."""
    num_rows = len(slab.maxima)
    tops = _finite(slab.maxima)
    floats = torch.sub(slab.logits, tops[..., None], out=space.floats[:num_rows])
    ticks = space.ticks[:num_rows].copy_(_to_ticks(floats, temperature[..., None]))
    sums = ticks.sum(-1, dtype=torch.int32).double()
    scale = ((tops - slab.peaks) / temperature).exp_().double()
    return (sums * scale * (unit_of(slab) / 2.0**_TICK_BITS)).floor_()


def weigh_lanes(slab: Slab, tiles: Tensor, temperature: Tensor) -> Tensor:
    """The weights in ticks of the lanes of one tile of each row, [rows, TILE]."""
    rows = torch.arange(len(tiles), device=tiles.device)
    lanes = slab.logits[rows, tiles] - _finite(slab.maxima[rows, tiles])[:, None]
    return _to_ticks(lanes, temperature).int().double()


def pick(weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse CDF over `weights` [rows, any] at `noise` [rows] of [0, 1): the places picked, and
    how far into each its noise reaches, again of [0, 1).
    """
    sums = weights.cumsum(-1)
    totals = sums[:, -1:]
    points = torch.minimum(noise[:, None] * totals, totals - 1)
    places = (sums <= points).sum(-1, keepdim=True).clamp_(max=weights.shape[1] - 1)
    picked = weights.gather(1, places)
    rest = (points - (sums.gather(1, places) - picked)) / picked
    return places[:, 0], rest[:, 0]


def _to_ticks(differences: Tensor, temperature: Tensor) -> Tensor:
    """Weights in ticks plus a half, in place: a cast to integers then rounds."""
    differences.div_(temperature).exp_()
    half = differences.new_full((), 0.5)
    return torch.add(half, differences, alpha=2.0**_TICK_BITS, out=differences)


def _finite(maxima: Tensor) -> Tensor:
    """A tile of nothing but -inf still has something to subtract."""
    return maxima.clamp(min=torch.finfo(maxima.dtype).min)
