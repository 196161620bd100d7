"""The tensors of one step: every chunk's tokens packed as one ragged row, and where their keys and
values lie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from quire.cache.moves import Move


@dataclass(frozen=True, slots=True)
class Batch:
    """One step, T tokens of S chunks. All tensors are on the model's device.

    `input_ids`, `positions`: int64 [T]. For each layer group, `slots`: int64 [T], where each
    token's K and V are written; and `block_tables`: int32 [S, max_blocks], padded with the null
    block 0, whose entries for what no query of the step can see mean nothing. `query_starts`: S + 1
    offsets into the T tokens. `context_lens`: S lengths, this step's tokens included. `logit_rows`:
    int64 [R], the tokens whose logits are wanted, in order.
    """

    input_ids: Tensor
    positions: Tensor
    slots: tuple[Tensor, ...]
    block_tables: tuple[Tensor, ...]
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    logit_rows: Tensor


class Model(Protocol):
    """What a runner drives: the Hugging Face model, and the toy of the first laws."""

    @property
    def vocab_size(self) -> int: ...

    def move(self, moves: Sequence[Move]) -> None:
        """Do them in their order: what is read afterwards lies where they have put it."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Write the step's K and V, attend, and return logits [R, vocab_size] of `logit_rows`."""
        ...
