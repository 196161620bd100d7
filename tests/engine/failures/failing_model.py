"""The toy behind what raises for some batches."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.batch import Batch, StepRows
from quire.models.toy import ToyModel

Rows = TypeVar("Rows")


@dataclass
class FailingModel:
    """Raises what `error_of` returns for a batch, before or after the batch was computed.
    `num_forwards` counts batches, computed or not.
    """

    toy: ToyModel
    error_of: Callable[[Batch], Exception | None]
    fails_late: bool = False
    num_forwards: int = field(default=0)

    @property
    def vocab_size(self) -> int:
        return self.toy.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self.toy.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self.toy.take_copy_time()

    def forward(self, batch: Batch) -> Tensor:
        return self._computed(batch, self.toy.forward)

    def forward_with_states(self, batch: Batch) -> StepRows:
        return self._computed(batch, self.toy.forward_with_states)

    def _computed(self, batch: Batch, forward: Callable[[Batch], Rows]) -> Rows:
        self.num_forwards += 1
        error = self.error_of(batch)
        if error is not None and not self.fails_late:
            raise error
        rows = forward(batch)
        if error is not None:
            raise error
        return rows
