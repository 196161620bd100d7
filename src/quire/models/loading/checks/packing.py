"""Runs the same tokens alone and packed beside another request, through a model's paged memory.

A family that ignores position ids, or mixes neighbouring tokens outside of attention, would serve
wrong text without any error: the logits of the two runs tell.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from quire.cache.states.state_use import NULL_STATE
from quire.models.batch import Batch, Model
from quire.models.recurrent.pieces import Pieces

NUM_TOKENS = 12
ROWS = range(1, NUM_TOKENS)
"""The tokens whose logits are compared: not all, so that a head which cannot leave rows out shows.
The first sees no other token."""
BLOCK_SIZE = 4
TABLES = ((1, 2, 3), (4, 5, 6))
"""The blocks of the request that is looked at, and of the one beside it."""
NUM_BLOCKS = 7
"""The null block among them."""
NUM_STATES = 3
"""The null state, and one of each request."""


def check_tokens(vocab_size: int) -> tuple[int, ...]:
    """Return NUM_TOKENS token ids that lie evenly over the vocabulary: the ids at either end are
    special tokens of most models, after which logits are mostly rounding noise."""
    return tuple((place + 1) * vocab_size // (NUM_TOKENS + 1) for place in range(NUM_TOKENS))


def logits_alone(model: Model, tokens: Sequence[int], device: torch.device) -> Tensor:
    """Return the logits [len(ROWS), vocab_size] of `tokens` in a batch of their own.

    `model` has NUM_BLOCKS blocks of BLOCK_SIZE, all layers in one group.
    """
    return logits_of(model, tokens, ROWS, device)


def logits_of(
    model: Model, tokens: Sequence[int], rows: Sequence[int], device: torch.device
) -> Tensor:
    """Return the logits [len(rows), vocab_size] of `rows` of `tokens` in a batch of their own.

    `model` has blocks of BLOCK_SIZE for them behind the null block, all layers in one group.
    """
    blocks = tuple(range(1, 2 + len(tokens) // BLOCK_SIZE))
    chunk = _Chunk(blocks, 1, 0, tuple(tokens))
    return model.forward(_batch([chunk], rows, device)).clone()


def logits_packed(model: Model, tokens: Sequence[int], device: torch.device) -> Tensor:
    """Return the logits of `logits_alone`, computed in three steps in which another request stands
    before, behind and again before this one."""
    own, other = tuple(tokens), tuple(reversed(tokens))
    ours, theirs = ((table, 1 + index) for index, table in enumerate(TABLES))
    steps = (
        ([_Chunk(*theirs, 0, other[:3]), _Chunk(*ours, 0, own[:5])], range(4, 8)),
        ([_Chunk(*ours, 5, own[5:9]), _Chunk(*theirs, 3, other[3:5])], range(4)),
        ([_Chunk(*theirs, 5, other[5:6]), _Chunk(*ours, 9, own[9:])], range(1, 4)),
    )
    return torch.cat([model.forward(_batch(*step, device)).clone() for step in steps])


def distance(found: Tensor, expected: Tensor) -> float:
    """Return how far logits [rows, vocab_size] are from the expected ones: the root mean square of
    the differences, as a share of that of the expected logits.

    Each row is taken from its mean first, since a softmax does not see what all its logits share.
    Logits that have nothing to do with each other are 1.4 apart. Scores, of which a row has one
    alone, are not taken from anything.
    """
    differences, expected = _centred(found.double() - expected), _centred(expected.double())
    size = float(expected.square().mean().sqrt())
    return float(differences.square().mean().sqrt()) / max(size, torch.finfo(torch.float32).tiny)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True) if rows.shape[-1] > 1 else rows


def hidden_size(model: Model, device: torch.device) -> int:
    """Return the size of the states that the model shows, 0 if it shows none."""
    batch = _batch([_Chunk(TABLES[0], 1, 0, (0, 0))], (0,), device)
    try:
        _, states = model.forward_with_states(replace(batch, states_indices=batch.positions[1:]))
    except RuntimeError:
        return 0
    return 0 if states is None else states.shape[1]


class _Chunk(NamedTuple):
    """The tokens of a request from position `start` on. Its blocks are `table`, and the state of
    its recurrent layers is `state_id`."""

    table: tuple[int, ...]
    state_id: int
    start: int
    token_ids: tuple[int, ...]


def _batch(chunks: Sequence[_Chunk], logits_indices: Sequence[int], device: torch.device) -> Batch:
    """Return the step of these chunks, for a model whose layers are all in one group."""
    positions = [range(chunk.start, chunk.start + len(chunk.token_ids)) for chunk in chunks]

    def longs(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    slots = [
        chunk.table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for chunk, places in zip(chunks, positions, strict=True)
        for position in places
    ]
    tables = [chunk.table for chunk in chunks]
    starts = tuple(accumulate(map(len, positions), initial=0))
    return Batch(
        input_ids=longs([token for chunk in chunks for token in chunk.token_ids]),
        positions=longs([position for places in positions for position in places]),
        slots=(longs(slots),),
        block_tables=(torch.tensor(tables, dtype=torch.int32, device=device),),
        query_starts=starts,
        context_lens=tuple(places.stop for places in positions),
        logits_indices=longs(list(logits_indices)),
        pieces=_pieces(chunks, starts, device),
    )


def _pieces(chunks: Sequence[_Chunk], starts: Sequence[int], device: torch.device) -> Pieces:
    """Return the pieces of a step in which each chunk is one: it goes on from its request's state,
    or at the beginning from the null state."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Pieces(
        starts=ints(starts),
        reads=ints([chunk.state_id if chunk.start else NULL_STATE for chunk in chunks]),
        writes=ints([chunk.state_id for chunk in chunks]),
        sequences=ints(range(len(chunks) + 1)),
    )
