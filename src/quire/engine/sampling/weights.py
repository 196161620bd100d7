"""Probabilities as integers, and inverse CDF sampling from them.

exp((logit - peak) / temperature) is computed for each token by itself and rounded. Every sum after
that is exact in any order, so that what a row samples cannot depend on the rows beside it, on
threads, or on the order in which a device reduces.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import TILE, SamplingWorkspace, Slab, lanes_of

_TICK_BITS = 23
"""The most likely token of a tile weighs 2**23 ticks: the sum of a tile still fits 31 bits."""
_SUM_BITS = 52
"""The weights of a row sum to less than 2**52, which is exact in fp64."""


def unit_of(slab: Slab) -> float:
    """Return the weight of a row's most likely token. A weight of 1 is 2**-34 of it for the largest
    vocabularies.
    """
    return unit_of_tiles(slab.maxima.shape[1])


def unit_of_tiles(num_tiles: int) -> float:
    """Return the same for a row of `num_tiles` tiles."""
    return 2.0 ** (_SUM_BITS - (num_tiles * TILE).bit_length())


def weigh(slab: Slab, logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the weights of some `logits` [rows, any] of the slab's rows, float64."""
    return ((logits - slab.peaks) / temperature).exp_().mul_(unit_of(slab)).floor_().double()


def weigh_all(slab: Slab, temperature: Tensor, space: SamplingWorkspace) -> Tensor:
    """Return the weights of all tokens, [rows, tiles, TILE]. Each is an integer in fp32, but their
    sums must be taken in fp64. The result lies in `space.floats`."""
    floats = torch.sub(slab.logits, slab.peaks[..., None], out=space.floats[: len(slab.logits)])
    return floats.div_(temperature[..., None]).exp_().mul_(unit_of(slab)).floor_()


def weigh_likely(
    slab: Slab, temperature: Tensor, least: Tensor, space: SamplingWorkspace
) -> Tensor:
    """Return what `weigh_all` returns, with 0 for tokens with logits below `least` [rows, 1]."""
    weights = weigh_all(slab, temperature, space)
    marks = space.ints[: len(weights)].view(
        torch.float32
    )  # on a CPU far faster than a boolean mask
    return weights.mul_(marks.copy_(slab.logits).ge_(least[..., None]))


def weigh_tiles(slab: Slab, temperature: Tensor, space: SamplingWorkspace) -> Tensor:
    """Return the summed weights of each tile, float64 [rows, tiles]."""
    num_rows = len(slab.maxima)
    tops = _finite(slab.maxima)
    floats = torch.sub(slab.logits, tops[..., None], out=space.floats[:num_rows])
    ticks = space.ints[:num_rows].copy_(_to_ticks(floats, temperature[..., None]))
    sums = ticks.sum(-1, dtype=torch.int32).double()
    scale = ((tops - slab.peaks) / temperature).exp_().double()
    return (sums * scale * (unit_of(slab) / 2.0**_TICK_BITS)).floor_()


def weigh_lanes(slab: Slab, tiles: Tensor, temperature: Tensor) -> Tensor:
    """Return the weights, in ticks, of the tokens of one tile of each row, [rows, TILE]."""
    tops = _finite(slab.maxima.gather(1, tiles[:, None]))
    return _to_ticks(lanes_of(slab.logits, tiles) - tops, temperature).int().double()


class SampledIndices(NamedTuple):
    """The indices picked [rows], how far into the weight of each its point lies, and that weight,
    [rows, 1]."""

    indices: Tensor
    within: Tensor
    weights: Tensor


def points_of(weights: Tensor, noise: Tensor) -> Tensor:
    """Return the points in the sum of `weights` [rows, any] at `noise` [rows, 1] in [0, 1)."""
    totals = weights.sum(-1, keepdim=True)
    return torch.minimum(noise * totals, totals - 1)


def pick(weights: Tensor, points: Tensor) -> SampledIndices:
    """Return in which of `weights` [rows, any] the `points` [rows, 1] fall: the inverse CDF."""
    sums = weights.cumsum(-1)
    indices = (sums <= points).sum(-1, keepdim=True).clamp_(max=weights.shape[1] - 1)
    picked = weights.gather(1, indices)
    return SampledIndices(indices[:, 0], points - (sums.gather(1, indices) - picked), picked)


def _to_ticks(differences: Tensor, temperature: Tensor) -> Tensor:
    """Return weights in ticks plus a half, in place: a cast to integers then rounds."""
    differences.div_(temperature).exp_()
    half = differences.new_full((), 0.5)
    return torch.add(half, differences, alpha=2.0**_TICK_BITS, out=differences)


def _finite(maxima: Tensor) -> Tensor:
    """Return finite maxima, so that a tile of nothing but -inf subtracts no -inf."""
    return maxima.clamp(min=torch.finfo(maxima.dtype).min)
