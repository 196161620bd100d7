"""Checks, on every load, that a request's logits do not depend on the other requests in its batch.

A family that ignores position ids, or mixes neighbouring tokens outside of attention, would serve
wrong text without any error; this check finds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.batch import Batch, Model

BLOCK_SIZE = 4
NUM_BLOCKS = 3
OTHER_TOKENS = (0, 0)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.2, torch.bfloat16: 0.2}
"""Shares of the logits' spread. In half precision only gross faults differ from rounding."""
OWN_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1.0, torch.bfloat16: 1.0}
"""The tolerance of logits by another attention: there rounding may also choose other experts."""


def is_close(logits: Tensor, expected: Tensor, tolerance: Mapping[torch.dtype, float]) -> bool:
    error = (logits - expected).abs().max()
    return bool(error <= tolerance[expected.dtype] * expected.float().std() + 1e-6)


def is_batch_invariant(
    model: Model,
    tokens: tuple[int, ...],
    alone: Tensor,
    *,
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
) -> bool:
    """Return whether `model` gives `tokens` the logits `alone` also beside another request.

    `alone` [vocab_size] are the logits after `tokens`, of which there are at most BLOCK_SIZE, in a
    batch of their own. `model` has NUM_BLOCKS blocks of BLOCK_SIZE, all layers in one group.
    """
    last = len(tokens) - 1
    before = _batch([_Chunk(1, 0, tokens[:last])], (), alone.device)
    beside = _batch(
        [_Chunk(2, 0, OTHER_TOKENS), _Chunk(1, last, tokens[last:])],
        (len(OTHER_TOKENS),),
        alone.device,
    )
    model.forward(before)
    return is_close(model.forward(beside)[0], alone, tolerance)


def hidden_size(model: Model, device: torch.device) -> int:
    """Return the size of the states that the model shows, 0 if it shows none."""
    batch = _batch([_Chunk(1, 0, OTHER_TOKENS)], (0,), device)
    try:
        _, states = model.forward_with_states(replace(batch, states_indices=batch.positions[1:]))
    except RuntimeError:
        return 0
    return 0 if states is None else states.shape[1]


class _Chunk(NamedTuple):
    """The tokens of a request from position `start` on. All of the request lies in one block."""

    block_id: int
    start: int
    token_ids: tuple[int, ...]


def _batch(
    chunks: Sequence[_Chunk], logits_indices: tuple[int, ...], device: torch.device
) -> Batch:
    """Return the step of these chunks, for a model whose layers are all in one group."""
    positions = [range(chunk.start, chunk.start + len(chunk.token_ids)) for chunk in chunks]

    def longs(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    slots = [
        chunk.block_id * BLOCK_SIZE + position
        for chunk, places in zip(chunks, positions, strict=True)
        for position in places
    ]
    block_ids = [[chunk.block_id] for chunk in chunks]
    return Batch(
        input_ids=longs([token for chunk in chunks for token in chunk.token_ids]),
        positions=longs([position for places in positions for position in places]),
        slots=(longs(slots),),
        block_tables=(torch.tensor(block_ids, dtype=torch.int32, device=device),),
        query_starts=tuple(accumulate(map(len, positions), initial=0)),
        context_lens=tuple(places.stop for places in positions),
        logits_indices=longs(logits_indices),
    )
