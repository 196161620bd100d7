"""The toy behind a device whose steps take time by their tokens."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.batch import Batch, Model, StepRows


class StepTimes(NamedTuple):
    """Seconds of a step, and of each of its tokens more; both times one of `factors`, in turn.
    Small binary fractions, whose sums are exact."""

    base_s: float
    token_s: float
    factors: tuple[float, ...] = (1.0,)


@dataclass
class TimedModel:
    """Lets time pass by `pass_time` whenever it computes."""

    model: Model
    times: StepTimes
    pass_time: Callable[[float], None]
    num_forwards: int = field(default=0)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self.model.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self.model.take_copy_time()

    def forward(self, batch: Batch) -> Tensor:
        self._pass(batch)
        return self.model.forward(batch)

    def forward_with_states(self, batch: Batch) -> StepRows:
        self._pass(batch)
        return self.model.forward_with_states(batch)

    def _pass(self, batch: Batch) -> None:
        base_s, token_s, factors = self.times
        factor = factors[self.num_forwards % len(factors)]
        self.num_forwards += 1
        self.pass_time(factor * (base_s + token_s * len(batch.input_ids)))
