"""What a request does to its logits before temperature, in this order: bans of `min_tokens` and
`logit_bias`, then repetition, frequency and presence penalty, as in vLLM's sampler. Only the ids
concerned are gathered, changed and scattered back, and a NaN among them stays one, so that a broken
row is still seen."""

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.engine.sample_row import SampleRow


def edit_logits(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    """Edit `logits` [len(rows), vocab], fp32, in place."""
    _add_bans_and_biases(logits, rows)
    places = [place for place, row in enumerate(rows) if row.asks_penalties]
    if places:
        _penalise(logits, places, [rows[place] for place in places])


def _add_bans_and_biases(logits: Tensor, rows: Sequence[SampleRow]) -> None:
    places: list[int] = []
    ids: list[int] = []
    addends: list[float] = []
    for place, row in enumerate(rows):
        bans = [(token_id, -torch.inf) for token_id in row.banned_token_ids]
        for token_id, addend in (*bans, *row.sampling.logit_bias):
            if 0 <= token_id < logits.shape[1]:  # no other can be drawn anyway
                places.append(place)
                ids.append(token_id)
                addends.append(addend)
    if ids:
        index = torch.tensor((places, ids), device=logits.device).unbind()
        values = torch.tensor(addends, dtype=torch.float32, device=logits.device)
        logits.index_put_(index, values, accumulate=True)


def _penalise(logits: Tensor, places: Sequence[int], rows: Sequence[SampleRow]) -> None:
    seen = [row.seen() for row in rows]
    device = logits.device
    lengths = torch.tensor([len(each.ids) for each in seen], device=device)
    ids = _join([each.ids for each in seen], device)
    counts = _join([each.counts for each in seen], device)
    asked = [
        (
            row.sampling.repetition_penalty,
            row.sampling.frequency_penalty,
            row.sampling.presence_penalty,
        )
        for row in rows
    ]
    penalties = torch.tensor(asked, dtype=torch.float32, device=device)
    repetition, frequency, presence = penalties.repeat_interleave(lengths, 0).unbind(-1)
    index = (torch.tensor(places, device=device).repeat_interleave(lengths), ids)
    values = logits[index]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[index] = values - frequency * counts - presence * (counts > 0)


def _join(parts: "Sequence[array[int]]", device: torch.device) -> Tensor:
    joined = bytearray().join(parts)
    if not joined:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(joined, dtype=torch.int64).to(device)
