"""Top-p without a sort: finds the most likely tokens of a row that reach a wanted weight.

The ranks of tokens are integers, and three of their digits, one after another, tell at which rank
the weight is reached (a radix select over sums). Buckets of integers are summed, so that any order
of summing gives the same.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import TILE, SamplingWorkspace, lanes_of
from quire.engine.sampling.weights import pick, points_of

_DIGITS = ((21, 1 << 11, -(1 << 10)), (10, 1 << 11, 0), (0, 1 << 10, 0))
"""Each digit by the bits that ranks are shifted, the number of its values, and the least of them:
the first digit has the sign of the rank."""


class TopPThreshold(NamedTuple):
    """All tokens of smaller ranks than `rank`, int32 [rows, 1], are kept, and of those of this rank
    as many of the lowest ids as it takes to weigh `missing`, float64 [rows, 1]."""

    rank: Tensor
    missing: Tensor


def find_threshold(
    ranks: Tensor, weights: Tensor, wanted: Tensor, space: SamplingWorkspace
) -> TopPThreshold:
    """Return the threshold of the tokens that have less than `wanted` [rows, 1], of 0.5 or more,
    before them; the largest rank if all tokens weigh less. `ranks` int32 and `weights` are
    [rows, tiles, TILE].

    Tokens that differ in an earlier digit are counted in extra buckets on either side of this
    digit's, one for each lane, since atomic additions to one address are serialised on a GPU.
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
    threshold: TopPThreshold, *, ranks: Tensor, weights: Tensor, own: Tensor, noise: Tensor
) -> Tensor:
    """Return the ids sampled at `noise` [rows, 1] from the tokens that the threshold keeps.

    `ranks` and `weights` are as above; weights are overwritten. A token at the threshold weighs
    `own`, int64 [rows, 1].
    """
    rank = threshold.rank[..., None]
    is_at_threshold = ranks == rank
    weights *= ranks < rank
    counts = is_at_threshold.sum(-1)
    num_kept = (threshold.missing.ceil().long() + own - 1) // own
    kept = torch.minimum(counts, (num_kept - counts.cumsum(-1) + counts).clamp_(min=0))
    sums = weights.sum(-1, dtype=torch.float64) + kept * own
    tiles = pick(sums, points_of(sums, noise))
    marks = lanes_of(is_at_threshold, tiles.indices)
    marks &= marks.cumsum(-1) <= kept.gather(1, tiles.indices[:, None])
    lanes = lanes_of(weights, tiles.indices).double() + marks * own
    return tiles.indices * TILE + pick(lanes, tiles.within).indices
