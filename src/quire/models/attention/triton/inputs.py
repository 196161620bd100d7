"""The inputs of the kernels in one step, on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.batch import Batch

ALIGNMENT = 4
"""int32 in 16 bytes."""


class StepBounds(NamedTuple):
    """Bounds of a step, which decide which kernels run and on what grids; no context is longer than
    `max_context`."""

    max_context: int
    has_singles: bool
    """Whether there is a chunk of one token."""
    has_longer: bool
    """Whether there is a longer chunk."""
    longest_chunk: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`query_starts` int32 [S + 1] and `context_lens` int32 [S]; for each block table
    `block_tables` int32 [S, columns] and `slots` int64 [T]: as in Batch.

    A step whose launches are captured and replayed must keep these tensors, the shapes of its
    queries, keys and values, and `bounds`; the numbers in the tensors may change between replays as
    far as `bounds` holds. A sequence without tokens, `query_starts` equal on both sides of it, is
    passed over, a slot below 0 is not written, and what is attended of tokens of no sequence is not
    set: so a batch smaller than the captured one is padded.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: tuple[Tensor, ...]
    slots: tuple[Tensor, ...]
    bounds: StepBounds


def step_inputs(batch: Batch) -> StepInputs:
    """Return the inputs of a batch, sent by one copy for which the host does not wait.

    torch reuses pinned memory only when the copy from it is done.
    """
    device = batch.positions.device
    starts, lengths = batch.query_starts, batch.context_lens
    begin = -(-len(starts) // ALIGNMENT) * ALIGNMENT
    padding = (0,) * (begin - len(starts))
    numbers = torch.tensor(
        starts + padding + lengths, dtype=torch.int32, pin_memory=device.type == "cuda"
    ).to(device, non_blocking=True)
    return StepInputs(
        numbers[: len(starts)],
        numbers[begin:],
        batch.block_tables,
        batch.slots,
        step_bounds(batch),
    )


def step_bounds(batch: Batch) -> StepBounds:
    starts = batch.query_starts
    sizes = [end - start for start, end in zip(starts, starts[1:], strict=False)]
    return StepBounds(
        max_context=max(batch.context_lens),
        has_singles=1 in sizes,
        has_longer=max(sizes) > 1,
        longest_chunk=max(sizes),
    )
