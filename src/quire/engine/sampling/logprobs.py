"""Log probabilities of the model's own distribution, before temperature and logits processors, in
bounded memory: one slab of rows at a time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quire.engine.sampling.tiles import SamplingWorkspace, Slab, top_tokens
from quire.engine.sampling.weights import unit_of, weigh_tiles
from quire.scheduler.request import TokenLogprobs

MAX_COMPARED = 2**22
"""The number of logits that are compared at once to count ranks."""


class Scores(NamedTuple):
    """The log probabilities of one token and of the most likely tokens of each row.

    logprobs: float64 [rows].
    top_ids: int64 [rows, num_top], most likely first, equal ones by rising id.
    top_logprobs: float64 [rows, num_top].
    A row that is not finite has NaN everywhere, and undefined ids.
    """

    logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def pack(self) -> Tensor:
        """Return all of it as one float64 tensor of one dimension."""
        return torch.cat([each.flatten().double() for each in self])


def unpack_scores(numbers: Tensor, num_rows: int) -> Scores:
    """Return the scores of `num_rows` rows from the result of `pack`."""
    num_tops = (len(numbers) - num_rows) // 2
    logprobs, top_ids, top_logprobs = torch.split(numbers, [num_rows, num_tops, num_tops])
    num_top = num_tops // max(num_rows, 1)
    return Scores(
        logprobs, top_ids.long().view(num_rows, num_top), top_logprobs.view(num_rows, num_top)
    )


class RowsToScore(NamedTuple):
    """The rows of logits to score, at rising `row_indices` (the same on the device: `rows`), and
    the token to score in each, int64 [rows]."""

    row_indices: Sequence[int]
    rows: Tensor
    token_ids: Tensor


def score(space: SamplingWorkspace, logits: Tensor, scored: RowsToScore, num_top: int) -> Scores:
    """Score the token of each row and its `num_top` most likely tokens, for one row or more."""
    slabs = []
    for start in range(0, len(scored.row_indices), space.max_rows):
        some = slice(start, start + space.max_rows)
        loaded = space.load(logits, scored.row_indices[some], scored.rows[some])
        slab = space.slab(len(loaded))
        logs = _log_totals(slab, space)
        logprobs = (loaded.gather(1, scored.token_ids[some, None]).double() - logs)[:, 0]
        top = top_tokens(slab, max(num_top, 1))
        top_ids = top.ids[:, :num_top].clamp(max=space.vocab_size - 1)
        slabs.append(Scores(logprobs, top_ids, top.logits[:, :num_top].double() - logs))
    return Scores(*map(torch.cat, zip(*slabs, strict=True)))


def to_token_logprobs(token_ids: Sequence[int], scores: Scores) -> Iterator[TokenLogprobs]:
    """Yield the log probabilities of each row as the scheduler and the server take them."""
    columns = (token_ids, *(each.tolist() for each in scores))
    for token_id, logprob, ids, logprobs in zip(*columns, strict=True):
        yield TokenLogprobs(token_id, logprob, tuple(zip(ids, logprobs, strict=True)))


def ranks(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return the rank of a token in each row of `logits` [rows, vocab_size], 1 for the largest,
    int64 [rows]; some rows at a time. Equal ones share the least rank."""
    num_rows = max(MAX_COMPARED // logits.shape[1], 1)
    parts = zip(torch.split(logits, num_rows), torch.split(token_ids, num_rows), strict=True)
    found = [(rows > rows.gather(1, ids[:, None])).sum(1) + 1 for rows, ids in parts]
    return torch.cat(found)


def with_ranks(
    scores: Iterable[TokenLogprobs], logits: Tensor, token_ids: Tensor
) -> list[TokenLogprobs]:
    """Return the scores of prompt tokens with their ranks."""
    counted = ranks(logits, token_ids).tolist()
    return [each._replace(rank=rank) for each, rank in zip(scores, counted, strict=True)]


def _log_totals(slab: Slab, space: SamplingWorkspace) -> Tensor:
    """Return the log-sum-exp of each row, float64 [rows, 1]."""
    totals = weigh_tiles(slab, torch.ones_like(slab.peaks), space).sum(-1, keepdim=True)
    return slab.peaks.double() + (totals / unit_of(slab)).log()
