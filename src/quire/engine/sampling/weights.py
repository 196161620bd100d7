"""Probabilities as whole numbers. exp((logit - peak) / temperature) is taken for each token by
itself and rounded; every sum after that is exact in any order, so that what a row draws cannot
depend on the rows beside it, on threads, or on the way a device reduces.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import Slab, Workspace, lanes_of

_TICK_BITS = 23
"""The likeliest token of a tile weighs 2**23 ticks: a tile of them still fits 31 bits."""
_SUM_BITS = 52
"""The weights of a row sum to less than 2**52, exact in fp64."""


def unit_of(slab: Slab) -> float:
    """The weight of a row's likeliest token; the weight 1 is 2**-34 of it at the largest
    vocabularies.
    """
    return 2.0 ** (_SUM_BITS - slab.logits[0].numel().bit_length())


def weigh(slab: Slab, logits: Tensor, temperature: Tensor) -> Tensor:
    """The weights of some `logits` [rows, any] of the slab's rows."""
    return ((logits - slab.peaks) / temperature).exp_().mul_(unit_of(slab)).floor_().double()


def weigh_all(slab: Slab, temperature: Tensor, space: Workspace) -> Tensor:
    """The weights of all tokens as above, [rows, tiles, TILE]: each is a whole number in fp32, but
    their sums are not. They lie in `space.floats`."""
    floats = torch.sub(slab.logits, slab.peaks[..., None], out=space.floats[: len(slab.logits)])
    return floats.div_(temperature[..., None]).exp_().mul_(unit_of(slab)).floor_()


def weigh_likely(slab: Slab, temperature: Tensor, least: Tensor, space: Workspace) -> Tensor:
    """As `weigh_all`, where tokens with logits below `least` [rows, 1] weigh nothing."""
    weights = weigh_all(slab, temperature, space)
    marks = space.ints[: len(weights)].view(
        torch.float32
    )  # on a CPU far faster than a boolean mask
    return weights.mul_(marks.copy_(slab.logits).ge_(least[..., None]))


def weigh_tiles(slab: Slab, temperature: Tensor, space: Workspace) -> Tensor:
    """The summed weights of each tile, [rows, tiles]."""
    num_rows = len(slab.maxima)
    tops = _finite(slab.maxima)
    floats = torch.sub(slab.logits, tops[..., None], out=space.floats[:num_rows])
    ticks = space.ints[:num_rows].copy_(_to_ticks(floats, temperature[..., None]))
    sums = ticks.sum(-1, dtype=torch.int32).double()
    scale = ((tops - slab.peaks) / temperature).exp_().double()
    return (sums * scale * (unit_of(slab) / 2.0**_TICK_BITS)).floor_()


def weigh_lanes(slab: Slab, tiles: Tensor, temperature: Tensor) -> Tensor:
    """The weights in ticks of the lanes of one tile of each row, [rows, TILE]."""
    tops = _finite(slab.maxima.gather(1, tiles[:, None]))
    return _to_ticks(lanes_of(slab.logits, tiles) - tops, temperature).int().double()


class Picked(NamedTuple):
    """The places picked [rows], how far into each the point that was sought lies, and the weight of
    each, [rows, 1]."""

    places: Tensor
    within: Tensor
    weights: Tensor


def points_of(weights: Tensor, noise: Tensor) -> Tensor:
    """How much of the sum of `weights` [rows, any] lies before a `noise` [rows, 1] of [0, 1)."""
    totals = weights.sum(-1, keepdim=True)
    return torch.minimum(noise * totals, totals - 1)


def pick(weights: Tensor, points: Tensor) -> Picked:
    """Inverse CDF over `weights` [rows, any]: where the `points` [rows, 1] fall."""
    sums = weights.cumsum(-1)
    places = (sums <= points).sum(-1, keepdim=True).clamp_(max=weights.shape[1] - 1)
    picked = weights.gather(1, places)
    return Picked(places[:, 0], points - (sums.gather(1, places) - picked), picked)


def _to_ticks(differences: Tensor, temperature: Tensor) -> Tensor:
    """Weights in ticks plus a half, in place: a cast to integers then rounds."""
    differences.div_(temperature).exp_()
    half = differences.new_full((), 0.5)
    return torch.add(half, differences, alpha=2.0**_TICK_BITS, out=differences)


def _finite(maxima: Tensor) -> Tensor:
    """A tile of nothing but -inf still has something to subtract."""
    return maxima.clamp(min=torch.finfo(maxima.dtype).min)
