"""Which leading tokens of a row reach a wanted weight, found without an order of all of them: the
ranks of tokens are numbers, and three digits of them, one after another, say where the weight is
reached. Buckets of whole numbers are summed, so that any order of summing gives the same.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import TILE, Workspace, lanes_of
from quire.engine.sampling.weights import pick, points_of

_DIGITS = ((21, 1 << 11, -(1 << 10)), (10, 1 << 11, 0), (0, 1 << 10, 0))
"""By how many bits the ranks are shifted for a digit, how many values it has, and the least: the
first has the sign of the rank."""


class TopPThreshold(NamedTuple):
    """Tokens of smaller ranks than `rank`, int32 [rows, 1], are kept whole, and of those that have
    it so many of the lowest ids as it takes to weigh `missing`."""

    rank: Tensor
    missing: Tensor


def find_threshold(
    ranks: Tensor, weights: Tensor, wanted: Tensor, space: Workspace
) -> TopPThreshold:
    """Where the leading tokens end that have less than `wanted` [rows, 1], of 0.5 or more, before
    them, or at the largest rank there is if all weigh less. `ranks` int32 and `weights` are
    [rows, tiles, TILE].

    Tokens that differ in a former digit are counted at either side of this one's buckets, each in
    the place of its lane: additions to one place wait for each other on a GPU.
    """
    num_rows = len(ranks)
    weights = space.doubles[:num_rows].copy_(weights).flatten(1)
    buckets = space.longs[:num_rows]
    lanes = torch.arange(TILE, device=ranks.device)
    rank, missing = torch.zeros_like(ranks[:, 0, :1], dtype=torch.int64), wanted
    for shift, num_values, least in _DIGITS:
        rank = rank * num_values + least
        buckets.copy_(ranks >> shift).sub_((rank - TILE)[..., None])
        buckets.clamp_(TILE - 1 - lanes, TILE + num_values + lanes)
        sums = weights.new_zeros(num_rows, num_values + 2 * TILE)
        ends = sums.scatter_add_(1, buckets.flatten(1), weights).cumsum(-1)
        bucket = (ends < wanted).sum(-1, keepdim=True).clamp_(TILE, TILE + num_values - 1)
        missing = wanted - (ends - sums).gather(1, bucket)
        rank = rank + bucket - TILE
    return TopPThreshold(rank.int(), missing)


def sample_within(
    cut: TopPThreshold, *, ranks: Tensor, weights: Tensor, own: Tensor, noise: Tensor
) -> Tensor:
    """The ids drawn at `noise` [rows, 1] from what the cut keeps of tokens with `ranks` and
    `weights` as above, which are overwritten; one at the cut weighs `own`, int64 [rows, 1]."""
    rank = cut.rank[..., None]
    is_at_cut = ranks == rank
    weights *= ranks < rank
    counts = is_at_cut.sum(-1)
    num_kept = (cut.missing.ceil().long() + own - 1) // own
    kept = torch.minimum(counts, (num_kept - counts.cumsum(-1) + counts).clamp_(min=0))
    sums = weights.sum(-1, dtype=torch.float64) + kept * own
    tiles = pick(sums, points_of(sums, noise))
    marks = lanes_of(is_at_cut, tiles.places)
    marks &= marks.cumsum(-1) <= kept.gather(1, tiles.places[:, None])
    lanes = lanes_of(weights, tiles.places).double() + marks * own
    return tiles.places * TILE + pick(lanes, tiles.within).places
