"""Log probabilities of the model's own distribution, before anything a request asks of it, in
bounded memory: a slab of rows at a time."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from quire.engine.tiles import Slab, Workspace, candidates, least_of_top
from quire.engine.weights import unit_of, weigh_tiles
from quire.scheduler.request import TokenLogprobs


def score(
    space: Workspace,
    logits: Tensor,
    places: Sequence[int],
    token_ids: Sequence[int],
    num_top: int,
) -> Iterator[TokenLogprobs]:
    """Of the rows of `logits` [any, vocab] at rising `places` one given token each, and the
    `num_top` likeliest, equals by rising id. A row that is not finite gives NaN."""
    for start in range(0, len(places), space.max_rows):
        end = start + space.max_rows
        loaded = space.load(logits, places[start:end])
        slab = space.slab(len(loaded))
        logs = _log_totals(slab, space)
        chosen = torch.tensor(token_ids[start:end], device=logits.device)[:, None]
        drawn = (loaded.gather(1, chosen).double() - logs)[:, 0].tolist()
        top_ids, top_logits = _top(slab, min(num_top, space.vocab_size))
        top_logprobs = (top_logits.double() - logs).tolist()
        for row in zip(token_ids[start:end], drawn, top_ids.tolist(), top_logprobs, strict=True):
            token_id, logprob, ids, logprobs = row
            yield TokenLogprobs(token_id, logprob, tuple(zip(ids, logprobs, strict=True)))


def _log_totals(slab: Slab, space: Workspace) -> Tensor:
    """The logarithm of the sum of exponentials of each row, [rows, 1], fp64."""
    totals = weigh_tiles(slab, torch.ones_like(slab.peaks), space).sum(-1, keepdim=True)
    return slab.peaks.double() + (totals / unit_of(slab)).log()


def _top(slab: Slab, num_top: int) -> tuple[Tensor, Tensor]:
    """The likeliest ids and their logits, [rows, num_top]."""
    ranks = torch.full_like(slab.peaks, max(num_top, 1), dtype=torch.int64)
    among = candidates(slab, least_of_top(slab, ranks))
    order = among.ranked()[:, :num_top]
    return among.ids.gather(1, order), among.logits.gather(1, order)
