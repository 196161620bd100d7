"""Samples from one slab.

The parameters keep the first tokens in the order (falling logit, rising id): min_p first, then
top_k, then top_p of what these left, as in vLLM's sampler. One of the kept tokens is sampled by
inverse CDF in order of id.

Where top_k bounds them, the most likely tokens are listed. Otherwise all tokens are weighed and
none is listed: of those at the threshold a row keeps as many as needed, lowest ids first.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import (
    TILE,
    SamplingWorkspace,
    Slab,
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


class RowParams(NamedTuple):
    """The parameters of some rows, each [rows, 1], in the order of `row_params.pack_params`."""

    noise: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor


def split_params(numbers: Tensor) -> RowParams:
    """Split `numbers`, float64 [rows, NUM_PARAMS], into columns."""
    noise, temperature, top_k, top_p, log_min_p = numbers.T.contiguous()[..., None].unbind()
    return RowParams(noise, temperature.float(), top_k.long(), top_p, log_min_p)


def sample_untruncated(slab: Slab, params: RowParams, space: SamplingWorkspace) -> Tensor:
    """Sample where every token is kept: a tile first, then a token of it. Return ids [rows]."""
    sums = weigh_tiles(slab, params.temperature, space)
    tiles = pick(sums, points_of(sums, params.noise))
    ticks = weigh_lanes(slab, tiles.indices, params.temperature)
    lanes = pick(ticks, points_of(ticks, tiles.within / tiles.weights))
    return tiles.indices * TILE + lanes.indices


def sample_top_k(slab: Slab, params: RowParams, max_top_k: int) -> Tensor:
    """Sample where every row has a top_k, of at most `max_top_k`. Return ids [rows]."""
    among = top_tokens(slab, max_top_k)
    ranks = torch.arange(max_top_k, device=among.ids.device)
    weights = weigh(slab, among.logits, params.temperature)
    weights *= (ranks < params.top_k) & (among.logits >= _min_p_logit(slab, params))
    weights *= _is_leading(weights, params.top_p * weights.sum(-1, keepdim=True))
    ids, order = among.ids.sort()
    weights = weights.gather(1, order)
    indices = pick(weights, points_of(weights, params.noise)).indices
    return ids.gather(1, indices[:, None])[:, 0]


def sample_min_p(slab: Slab, params: RowParams, space: SamplingWorkspace) -> Tensor:
    """Sample rows in which only min_p removes tokens. Return ids [rows]."""
    weights = weigh_likely(slab, params.temperature, _min_p_logit(slab, params), space)
    sums = weights.sum(-1, dtype=torch.float64)
    tiles = pick(sums, points_of(sums, params.noise))
    lanes = lanes_of(weights, tiles.indices).double()
    return tiles.indices * TILE + pick(lanes, tiles.within).indices


def min_p_weight(slab: Slab, params: RowParams, space: SamplingWorkspace) -> Tensor:
    """Return the total weight of the tokens that min_p leaves, [rows, 1]."""
    weights = weigh_likely(slab, params.temperature, _min_p_logit(slab, params), space)
    return weights.flatten(1).sum(-1, keepdim=True, dtype=torch.float64)


def total_weight(slab: Slab, params: RowParams, space: SamplingWorkspace) -> Tensor:
    """Return the total weight of all tokens, [rows, 1], summed by tiles as in the C++ kernel."""
    return weigh_tiles(slab, params.temperature, space).sum(-1, keepdim=True)


def sample_top_p(slab: Slab, params: RowParams, totals: Tensor, space: SamplingWorkspace) -> Tensor:
    """Sample where top_p of the weight `totals` [rows, 1] removes tokens. Return ids [rows].

    Tokens that min_p removed come after all that top_p keeps."""
    ranks = rank_all(slab, space)
    weights = weigh_all(slab, params.temperature, space)
    wanted = (params.top_p * totals).clamp_(min=0.5)  # the most likely token is always kept
    threshold = find_threshold(ranks, weights, wanted, space)
    own = weigh(slab, logits_of_rank(threshold.rank), params.temperature).long().clamp_(min=1)
    return sample_within(threshold, ranks=ranks, weights=weights, own=own, noise=params.noise)


def _min_p_logit(slab: Slab, params: RowParams) -> Tensor:
    """Return the least logit that min_p keeps, [rows, 1]; -inf where it is off."""
    return (slab.peaks + params.temperature * params.log_min_p).float()


def _is_leading(weights: Tensor, wanted: Tensor) -> Tensor:
    """Return which of `weights`, in rank order, have less than `wanted` before them; the first
    always has."""
    is_leading = weights.cumsum(-1) - weights < wanted
    is_leading[:, 0] = True
    return is_leading
