"""Does a model give a request the same logits alone and in company? Tried once on every load.

A family that ignores position ids, or mixes neighbouring tokens outside of attention, would serve
wrong text without any error; here it shows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from quire.models.batch import Batch, Model

BLOCK_SIZE = 4
NUM_BLOCKS = 3
COMPANY = (0, 0)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.2, torch.bfloat16: 0.2}
"""Of the logits' spread. In half precision only gross faults can be told from rounding."""
OWN_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1.0, torch.bfloat16: 1.0}
"""Where attention is computed otherwise, rounding may also choose other experts."""


def is_close(logits: Tensor, expected: Tensor, tolerance: Mapping[torch.dtype, float]) -> bool:
    error = (logits - expected).abs().max()
    return bool(error <= tolerance[expected.dtype] * expected.float().std() + 1e-6)


def is_independent(
    model: Model,
    tokens: tuple[int, ...],
    alone: Tensor,
    num_groups: int = 1,
    *,
    tolerance: Mapping[torch.dtype, float] = TOLERANCE,
) -> bool:
    """`alone`: the logits after `tokens`, at most BLOCK_SIZE of them, without company. `model` has
    NUM_BLOCKS blocks of BLOCK_SIZE, all layers in one group."""
    last = len(tokens) - 1
    slots = tuple(range(BLOCK_SIZE, BLOCK_SIZE + len(tokens)))
    company = tuple(range(2 * BLOCK_SIZE, 2 * BLOCK_SIZE + len(COMPANY)))
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
            logit_rows=longs(),
        )
    )
    packed = model.forward(
        Batch(
            input_ids=longs(*COMPANY, tokens[last]),
            positions=longs(*range(len(COMPANY)), last),
            slots=(longs(*company, slots[last]),) * num_groups,
            block_tables=tables(2, 1),
            query_starts=(0, len(COMPANY), len(COMPANY) + 1),
            context_lens=(len(COMPANY), len(tokens)),
            logit_rows=longs(len(COMPANY)),
        )
    )[0]
    return is_close(packed, alone, tolerance)
