"""Log probabilities of the model's own distribution, before anything a request asks of it, in
bounded memory: a slab of rows at a time."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import Slab, Workspace, top_tokens
from quire.engine.sampling.weights import unit_of, weigh_tiles
from quire.scheduler.request import TokenLogprobs


class Scores(NamedTuple):
    """Of each row the log probability of one token, fp64 [rows], and the likeliest tokens, equals
    by rising id, with theirs, [rows, num_top]. All NaN, and the ids any, where a row is not finite.
    """

    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def pack(self) -> Tensor:
        """As one row of fp64."""
        return torch.cat([each.flatten().double() for each in self])


def unpack_scores(numbers: Tensor, num_rows: int) -> Scores:
    """What `pack` packed, of so many rows."""
    num_tops = (len(numbers) - num_rows) // 2
    logprobs, top_ids, top_logprobs = torch.split(numbers, [num_rows, num_tops, num_tops])
    num_top = num_tops // max(num_rows, 1)
    return Scores(
        logprobs, top_ids.long().view(num_rows, num_top), top_logprobs.view(num_rows, num_top)
    )


class RowsToScore(NamedTuple):
    """The rows of some logits to be scored, at rising `places`, which are `rows` on the device,
    and the token of each, int64 [rows]."""

    places: Sequence[int]
    rows: Tensor
    token_ids: Tensor


def score(space: Workspace, logits: Tensor, scored: RowsToScore, num_top: int) -> Scores:
    """Of each row its token and the `num_top` likeliest, for one row or more."""
    slabs = []
    for start in range(0, len(scored.places), space.max_rows):
        some = slice(start, start + space.max_rows)
        loaded = space.load(logits, scored.places[some], scored.rows[some])
        slab = space.slab(len(loaded))
        logs = _log_totals(slab, space)
        logprobs = (loaded.gather(1, scored.token_ids[some, None]).double() - logs)[:, 0]
        top = top_tokens(slab, max(num_top, 1))
        top_ids = top.ids[:, :num_top].clamp(max=space.vocab_size - 1)
        slabs.append(Scores(logprobs, top_ids, top.logits[:, :num_top].double() - logs))
    return Scores(*map(torch.cat, zip(*slabs, strict=True)))


def to_token_logprobs(token_ids: Sequence[int], scores: Scores) -> Iterator[TokenLogprobs]:
    """Of each row, its token given again."""
    columns = (token_ids, *(each.tolist() for each in scores))
    for token_id, logprob, ids, logprobs in zip(*columns, strict=True):
        yield TokenLogprobs(token_id, logprob, tuple(zip(ids, logprobs, strict=True)))


def _log_totals(slab: Slab, space: Workspace) -> Tensor:
    """The logarithm of the sum of exponentials of each row, [rows, 1], fp64."""
    totals = weigh_tiles(slab, torch.ones_like(slab.peaks), space).sum(-1, keepdim=True)
    return slab.peaks.double() + (totals / unit_of(slab)).log()
