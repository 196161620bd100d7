"""The model of rank 0 behind the `Model` protocol: each call is made by all ranks."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.engine.ranks.leader import Leader
from quire.engine.ranks.messages import CaptureGraphs, CopyBlocks
from quire.engine.ranks.step_tensors import header, packed_tensors
from quire.models.batch import Batch, StepRows
from quire.models.graphs.capture import GraphDevice
from quire.models.graphs.graphed_model import GraphedModel
from quire.models.graphs.record import GraphPlan, RecordedSteps, record_steps
from quire.models.hf import HFModel
from quire.models.parallel.group import RankGroup


@dataclass(frozen=True, slots=True)
class LeadingModel:
    """Implements `Model` by rank 0's part of a model. The followers are told each call before it is
    made; the logits are whole on every rank, so that rank 0 alone samples.

    On CPUs a step's tensors go with the message. On GPUs they may be known to the device alone, and
    are broadcast.
    """

    model: HFModel | GraphedModel
    leader: Leader
    group: RankGroup

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        with self.leader.together():
            self.leader.tell(CopyBlocks(tuple(copies), tuple(new_blocks)))
            self.model.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self.model.take_copy_time()

    def forward(self, batch: Batch) -> Tensor:
        with self.leader.together():
            self._tell(batch)
            return self.model.forward(batch)

    def forward_with_states(self, batch: Batch) -> StepRows:
        with self.leader.together():
            self._tell(batch)
            return self.model.forward_with_states(batch)

    def record(
        self,
        plan: GraphPlan,
        device: GraphDevice,
        on_progress: Callable[[str, int, int], None],
    ) -> tuple["LeadingModel", RecordedSteps]:
        """Capture steps on all ranks, here with `device`, and return the model with the captures
        and this rank's report. Raises RanksFailed."""
        assert isinstance(self.model, HFModel), "steps are captured once"
        with self.leader.together():
            self.leader.tell(CaptureGraphs(plan))
            recorded = record_steps(self.model, plan, device, on_progress)
        if recorded.model is self.model:
            return self, recorded
        return replace(self, model=recorded.model), recorded

    def close(self) -> None:
        """End the followers; no call may follow."""
        self.leader.close()

    def _tell(self, batch: Batch) -> None:
        packed = packed_tensors(batch)
        if packed.device.type == "cpu":
            self.leader.tell(header(batch, packed.numpy().tobytes()))
        else:
            self.leader.tell(header(batch, None))
            self.group.broadcast(packed)
