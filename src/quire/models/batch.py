"""The tensors of one step: every chunk's tokens packed as one ragged row, and where their keys and
values lie.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from quire.cache.block_copies import BlockCopy


@dataclass(frozen=True, slots=True)
class Batch:
    """One step, T tokens of S chunks. All tensors are on the model's device.

    `input_ids`, `positions`: int64 [T]. For each layer group, `slots`: int64 [T], where each
    token's K and V are written; and `block_tables`: int32 [S, max_blocks], padded with the null
    block 0, whose entries for what no query of the step can see mean nothing. `query_starts`: S + 1
    offsets into the T tokens. `context_lens`: S lengths, this step's tokens included. `logit_rows`:
    int64 [R], the tokens whose logits are wanted, in order. `only_largest`: of each of these rows
    only the largest is, with its equals; any other may come as -inf.
    """

    input_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]
    block_tables: tuple[Tensor, ...]
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    logit_rows: Tensor
    only_largest: bool = False


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """Two steps that, one after the other, come to the same: the tokens before the middle and those
    from there on, each with its rows of logits. None: a single token. Waits for the device."""
    starts, num_tokens = batch.query_starts, batch.query_starts[-1]
    if num_tokens < 2:
        return None
    middle = num_tokens // 2
    num_rows = int((batch.logit_rows < middle).sum())
    first_end = bisect_left(starts, middle)
    second = bisect_right(starts, middle) - 1
    left_out = starts[first_end] - middle  # of the chunk that is cut, if one is
    first_lens = list(batch.context_lens[:first_end])
    first_lens[-1] -= left_out
    return (
        replace(
            batch,
            input_ids=batch.input_ids[:middle],
            positions=batch.positions[:middle],
            slots=tuple(slots[:middle] for slots in batch.slots),
            block_tables=tuple(table[:first_end] for table in batch.block_tables),
            query_starts=(*starts[:first_end], middle),
            context_lens=tuple(first_lens),
            logit_rows=batch.logit_rows[:num_rows],
        ),
        replace(
            batch,
            input_ids=batch.input_ids[middle:],
            positions=batch.positions[middle:],
            slots=tuple(slots[middle:] for slots in batch.slots),
            block_tables=tuple(table[second:] for table in batch.block_tables),
            query_starts=(0, *(start - middle for start in starts[second + 1 :])),
            context_lens=batch.context_lens[second:],
            logit_rows=batch.logit_rows[num_rows:] - middle,
        ),
    )


class Model(Protocol):
    """What a runner drives: the Hugging Face model, and the toy of the first laws."""

    @property
    def vocab_size(self) -> int: ...

    def move(self, moves: Sequence[BlockCopy], claimed: Collection[int]) -> Callable[[], float]:
        """Before a step: do them in their order, so that what the step reads lies where they have
        put it. `claimed`: the blocks that its requests get anew; what moves out of others may go on
        beside it. Returns what tells the seconds that the moves took, once they are done."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Write the step's K and V, attend, and return logits [R, vocab_size] of `logit_rows`, all
        of them or, if the batch says so, the largest."""
        ...
