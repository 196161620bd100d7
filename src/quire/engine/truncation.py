"""Draws from one slab. The options keep a leading part of the tokens in the order (falling logit,
rising id): min_p first, then top_k, then top_p of what these left, as in vLLM's sampler. The kept
tokens are drawn by inverse CDF in order of id.

How many tokens are looked at is a matter of speed, and each row's own: it may look at more for a
neighbour's sake, and draws the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.asked import numbers_of
from quire.engine.sample_row import SampleRow
from quire.engine.tiles import (
    TILE,
    Candidates,
    Slab,
    Workspace,
    candidates,
    gather_candidates,
    least_of_top,
)
from quire.engine.weights import pick, weigh, weigh_lanes, weigh_tiles

_NUM_FIRST_TILES = 64
"""A nucleus is first sought among the tokens above the 64th largest tile maximum."""
_NUM_BUCKETS = 1024
_BUCKETS_PER_NAT = 40
"""Together as deep as the smallest weight: 25.6 nats are 37 bits."""


class Options(NamedTuple):
    """The options of some rows as tensors [rows, 1], `noise` [rows]."""

    noise: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor

    def select(self, places: Tensor) -> "Options":
        return Options(*(each[places] for each in self))


def build_options(rows: Sequence[SampleRow], vocab_size: int, device: torch.device) -> Options:
    numbers = [numbers_of(row, vocab_size) for row in rows]
    table = torch.tensor(numbers, dtype=torch.float64, device=device).T.contiguous()
    noise, temperature, top_k, top_p, log_min_p = table[..., None].unbind()
    return Options(noise[:, 0], temperature.float(), top_k.long(), top_p, log_min_p)


def draw_whole(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """Draw where no token is cut: a tile first, then a lane of it."""
    tiles, rest = pick(weigh_tiles(slab, options.temperature, space), options.noise)
    lanes, _ = pick(weigh_lanes(slab, tiles, options.temperature), rest)
    return tiles * TILE + lanes


def draw_bounded(slab: Slab, options: Options) -> Tensor:
    """Draw where top_k or min_p bound the kept tokens: both are thresholds known beforehand."""
    least = (slab.peaks + options.temperature * options.log_min_p).float()
    among = candidates(slab, torch.maximum(least, least_of_top(slab, options.top_k)))
    order = among.ranked()
    weights = weigh(slab, among.logits, options.temperature).gather(1, order)
    weights *= torch.arange(order.shape[1], device=order.device) < options.top_k
    kept = _leading(weights, options.top_p * weights.sum(-1, keepdim=True))
    return _pick_candidate(among, order, kept, options.noise)


def draw_nucleus(slab: Slab, options: Options, space: Workspace) -> Tensor:
    """Draw where top_p alone cuts: among the top tiles where they hold the nucleus, else wider."""
    totals = weigh_tiles(slab, options.temperature, space).sum(-1, keepdim=True)
    wanted = options.top_p * totals
    first = torch.full_like(options.top_k, _NUM_FIRST_TILES)
    among = candidates(slab, least_of_top(slab, first))
    order = among.ranked()
    weights = weigh(slab, among.logits, options.temperature).gather(1, order)
    ids = _pick_candidate(among, order, _leading(weights, wanted), options.noise)
    wide = (weights.sum(-1) < wanted[:, 0]).nonzero()[:, 0]
    if len(wide):
        ids[wide] = _draw_wide(slab.select(wide), options.select(wide), wanted[wide])
    return ids


def _draw_wide(slab: Slab, options: Options, wanted: Tensor) -> Tensor:
    """As above for a nucleus of any width. Buckets of logits are kept or dropped whole; only in the
    one where the weight reaches `wanted` do tokens need an order."""
    logits = slab.logits.flatten(1)
    weights = weigh(slab, logits, options.temperature)
    depths = (logits - slab.peaks) / options.temperature * -_BUCKETS_PER_NAT
    buckets = depths.clamp_(max=_NUM_BUCKETS - 1).long()
    histogram = weights.new_zeros(len(weights), _NUM_BUCKETS).scatter_add_(1, buckets, weights)
    sums = histogram.cumsum(-1)
    last = (sums < wanted).sum(-1, keepdim=True).clamp_(max=_NUM_BUCKETS - 1)
    above = (sums - histogram).gather(1, last)
    among = gather_candidates(slab, *(buckets == last).nonzero().unbind(1))
    order = among.ranked()
    inside = weigh(slab, among.logits, options.temperature).gather(1, order)
    inside = torch.zeros_like(inside).scatter_(1, order, _leading(inside, wanted - above))
    weights *= buckets < last
    weights.scatter_add_(1, among.ids, inside)
    return _pick_by_tiles(weights, options.noise)


def _leading(weights: Tensor, wanted: Tensor) -> Tensor:
    """Of `weights` in rank order those with less than `wanted` before them; always the first."""
    before = weights.cumsum(-1) - weights
    kept = before < wanted
    kept[:, 0] = True
    return weights * kept


def _pick_candidate(among: Candidates, order: Tensor, weights: Tensor, noise: Tensor) -> Tensor:
    """Draw among candidates that weigh `weights` in rank order."""
    places, _ = pick(torch.zeros_like(weights).scatter_(1, order, weights), noise)
    return among.ids.gather(1, places[:, None])[:, 0]


def _pick_by_tiles(weights: Tensor, noise: Tensor) -> Tensor:
    by_tile = weights.view(len(weights), -1, TILE)
    tiles, rest = pick(by_tile.sum(-1), noise)
    rows = torch.arange(len(tiles), device=tiles.device)
    lanes, _ = pick(by_tile[rows, tiles], rest)
    return tiles * TILE + lanes
