"""Draws from one slab. The options keep a leading part of the tokens in the order (falling logit,
rising id): min_p first, then top_k, then top_p of what these left, as in vLLM's sampler. The kept
tokens are drawn by inverse CDF in order of id.

Where top_k bounds them the few likeliest are listed. Else all tokens are weighed and nothing is
listed: of those at the cut a row keeps so many, lowest ids first.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import (
    TILE,
    Slab,
    Workspace,
    lanes_of,
    logits_of_rank,
    rank_all,
    top_tokens,
)
from quire.engine.sampling.top_p import find_threshold, sample_within
from quire.engine.sampling.weights import (
    pick,
    points_of,
    weigh,
    weigh_all,
    weigh_lanes,
    weigh_likely,
    weigh_tiles,
)


class Options(NamedTuple):
    """The options of some rows as tensors [rows, 1], in the order of `row_params.pack_params`."""

    noise: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor


def options_of(numbers: Tensor) -> Options:
    """Of `numbers` fp64 [rows, 5]."""
    noise, temperature, top_k, top_p, log_min_p = numbers.T.contiguous()[..., None].unbind()
    return Options(noise, temperature.float(), top_k.long(), top_p, log_min_p)


def sample_untruncated(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """Draw where no token is cut: a tile first, then a lane of it."""
    sums = weigh_tiles(slab, options.temperature, space)
    tiles = pick(sums, points_of(sums, options.noise))
    ticks = weigh_lanes(slab, tiles.places, options.temperature)
    lanes = pick(ticks, points_of(ticks, tiles.within / tiles.weights))
    return tiles.places * TILE + lanes.places


def sample_top_k(slab: Slab, options: Options, max_top_k: int) -> Tensor:
    """Draw where every row has a top_k, of at most `max_top_k`."""
    among = top_tokens(slab, max_top_k)
    ranks = torch.arange(max_top_k, device=among.ids.device)
    weights = weigh(slab, among.logits, options.temperature)
    weights *= (ranks < options.top_k) & (among.logits >= _least_likely(slab, options))
    weights *= _is_leading(weights, options.top_p * weights.sum(-1, keepdim=True))
    ids, order = among.ids.sort()
    weights = weights.gather(1, order)
    places = pick(weights, points_of(weights, options.noise)).places
    return ids.gather(1, places[:, None])[:, 0]


def sample_min_p(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """Draw where min_p alone cuts."""
    weights = weigh_likely(slab, options.temperature, _least_likely(slab, options), space)
    sums = weights.sum(-1, dtype=torch.float64)
    tiles = pick(sums, points_of(sums, options.noise))
    lanes = lanes_of(weights, tiles.places).double()
    return tiles.places * TILE + pick(lanes, tiles.within).places


def min_p_weight(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """What the tokens weigh together that min_p leaves, [rows, 1]."""
    weights = weigh_likely(slab, options.temperature, _least_likely(slab, options), space)
    return weights.flatten(1).sum(-1, keepdim=True, dtype=torch.float64)


def total_weight(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """What all tokens weigh together, [rows, 1], by tiles as in the C++ kernel."""
    return weigh_tiles(slab, options.temperature, space).sum(-1, keepdim=True)


def sample_top_p(slab: Slab, options: Options, totals: Tensor, space: Workspace) -> Tensor:
    """Draw where top_p cuts, of `totals` [rows, 1]: what min_p has cut comes after all of that."""
    ranks = rank_all(slab, space)
    weights = weigh_all(slab, options.temperature, space)
    wanted = (options.top_p * totals).clamp_(min=0.5)  # the first token is always kept
    cut = find_threshold(ranks, weights, wanted, space)
    own = weigh(slab, logits_of_rank(cut.rank), options.temperature).long().clamp_(min=1)
    return sample_within(cut, ranks=ranks, weights=weights, own=own, noise=options.noise)


def _least_likely(slab: Slab, options: Options) -> Tensor:
    """The logit that min_p asks for, [rows, 1]; -inf where it is off."""
    return (slab.peaks + options.temperature * options.log_min_p).float()


def _is_leading(weights: Tensor, wanted: Tensor) -> Tensor:
    """Of `weights` in rank order those with less than `wanted` before them; always the first."""
    is_leading = weights.cumsum(-1) - weights < wanted
    is_leading[:, 0] = True
    return is_leading
