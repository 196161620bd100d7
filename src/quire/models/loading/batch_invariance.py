"""Checks, on every load, that a request's logits do not depend on the other requests in its batch.

A family that ignores position ids, or mixes neighbouring tokens outside of attention, would serve
wrong text without any error; this check finds it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.models.batch import Batch, Model

BLOCK_SIZE = 4
NUM_BLOCKS = 3
OTHER_TOKENS = (0, 0)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.2, torch.bfloat16: 0.2}
"""Shares of the logits' spread. In half precision only gross faults differ from rounding."""
OWN_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1.0, torch.bfloat16: 1.0}
"""For logits by another attention: there rounding may also choose other experts."""


def is_close(logits: Tensor, expected: Tensor, tolerance: Mapping[torch.dtype, float]) -> bool:
    error = (logits - expected).abs().max()
    return bool(error <= tolerance[expected.dtype] * expected.float().std() + 1e-6)


def is_batch_invariant(
    model: Model,
    tokens: tuple[int, ...],
    alone: Tensor,
    num_groups: int = 1,
    *,
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
) -> bool:
    """Whether `model` gives `tokens` the logits `alone` also beside another request.

    `alone` [vocab_size] are the logits after `tokens`, of which there are at most BLOCK_SIZE, in a
    batch of their own. `model` has NUM_BLOCKS blocks of BLOCK_SIZE, all layers in one group.
    """
    last = len(tokens) - 1
    slots = tuple(range(BLOCK_SIZE, BLOCK_SIZE + len(tokens)))
    other_slots = tuple(range(2 * BLOCK_SIZE, 2 * BLOCK_SIZE + len(OTHER_TOKENS)))
    device = alone.device

    def longs(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def tables(*blocks: int) -> tuple[Tensor, ...]:
        return (torch.tensor(blocks, dtype=torch.int32, device=device)[:, None],) * num_groups

    model.forward(
        Batch(
            input_ids=longs(*tokens[:last]),
            positions=longs(*range(last)),
            slots=(longs(*slots[:last]),) * num_groups,
            block_tables=tables(1),
            query_starts=(0, last),
            context_lens=(last,),
            logits_indices=longs(),
        )
    )
    packed = model.forward(
        Batch(
            input_ids=longs(*OTHER_TOKENS, tokens[last]),
            positions=longs(*range(len(OTHER_TOKENS)), last),
            slots=(longs(*other_slots, slots[last]),) * num_groups,
            block_tables=tables(2, 1),
            query_starts=(0, len(OTHER_TOKENS), len(OTHER_TOKENS) + 1),
            context_lens=(len(OTHER_TOKENS), len(tokens)),
            logits_indices=longs(len(OTHER_TOKENS)),
        )
    )[0]
    return is_close(packed, alone, tolerance)
