"""Decode steps as graphs: on a GPU a step of few tokens takes longer to launch, one operation after
the other, than to compute. So steps in which every request computes one token are captured once for
each of a list of batch sizes, over tensors that stay where they are; running one means to fill
those and replay the graph. A step of another kind, or a larger one, is launched as usual.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.attention.backend import AttentionStep
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch, StepRows
from quire.models.block_rows import BlockRows
from quire.models.graphs.buffers import Buffers
from quire.models.graphs.capture import GraphDevice, GraphRecorder, Launch, capture_sizes
from quire.models.graphs.crossings import reason
from quire.models.graphs.sizes import ladder
from quire.models.hf import HFModel

logger = logging.getLogger(__name__)

NO_MEMORY = "there is no memory for them"


@runtime_checkable
class ReplayableBackend(Protocol):
    """An attention backend whose steps can be captured."""

    def over(self, inputs: StepInputs) -> AttentionStep:
        """Return a step that reads its inputs from tensors each time it is launched."""
        ...


@runtime_checkable
class PlannedBackend(Protocol):
    """A replayable backend that works out numbers on the host before each replay."""

    def plan_replay(self, num_seqs: int, batch: Batch) -> None:
        """Prepare the captured step of `num_seqs` sequences for those of `batch`, which may be
        fewer."""
        ...


class GraphedModel:
    """Implements `Model` by `model`, whose decode steps are replayed from CUDA graphs.

    launches: by batch size, what replays a captured step.
    planned: the backend, if it plans before replays.
    logits: [max_num_seqs, vocab_size], where replayed steps write them, valid until the next step.
    """

    def __init__(
        self,
        model: HFModel,
        buffers: Buffers,
        launches: dict[int, Launch],
        logits: Tensor,
        planned: PlannedBackend | None = None,
    ) -> None:
        self._model = model
        self._planned = planned
        self._buffers = buffers
        self._launches = launches
        self._sizes = sorted(launches)
        self._logits = logits

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._model.copy_blocks(copies, new_blocks)

    def block_rows(self) -> BlockRows:
        return self._model.block_rows()

    def take_copy_time(self) -> CopyTime:
        return self._model.take_copy_time()

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        size = self._size(batch)
        if size is None:
            return self._model.forward(batch)
        self._buffers.fill(batch, size)
        if self._planned is not None:
            self._planned.plan_replay(size, batch)
        self._launches[size]()
        return self._logits[: len(batch.context_lens)]

    def forward_with_states(self, batch: Batch) -> StepRows:
        """Launch the step operation by operation: what was captured computes logits alone."""
        return self._model.forward_with_states(batch)

    def _size(self, batch: Batch) -> int | None:
        """Return the batch size of the graph to replay, or None if the step must be launched."""
        count = len(batch.context_lens)
        is_decode = len(batch.positions) == len(batch.logits_indices) == count
        if not is_decode or count > self._sizes[-1]:
            return None
        return next(size for size in self._sizes if size >= count)


class _Decode:
    """Computes a step over the buffers, and copies its logits to where they stay."""

    def __init__(self, model: HFModel, backend: ReplayableBackend, buffers: Buffers) -> None:
        self._model = model
        self._backend = backend
        self._buffers = buffers
        self.logits: Tensor | None = None

    def run(self, size: int) -> None:
        buffers = self._buffers
        logits = self._model.compute(
            buffers.input_ids[:size],
            buffers.positions[:size],
            buffers.logits_indices[:size],
            self._backend.over(buffers.inputs(size)),
        )
        if self.logits is None:
            self.logits = logits.new_empty(len(buffers.input_ids), logits.shape[1])
        self.logits[:size].copy_(logits)


class RecordedDecode(NamedTuple):
    """A model, with its decode steps captured where that could be done.

    largest: the requests of the largest captured step; 0 if there are none.
    why_not: why there are none, in words.
    """

    model: HFModel | GraphedModel
    largest: int = 0
    why_not: str = ""


@torch.inference_mode()
def record_decode(
    model: HFModel,
    backend: ReplayableBackend,
    buffers: Buffers,
    device: GraphDevice,
    on_progress: Callable[[int, int], None],
) -> RecordedDecode:
    """Capture the decode steps of `model`, whose backend is `backend`. Where capturing fails the
    model is as it was."""
    decode = _Decode(model, backend, buffers)
    sizes = ladder(len(buffers.input_ids))
    try:
        launches = capture_sizes(GraphRecorder(device), sizes, decode.run, on_progress)
    except RuntimeError as error:
        name, why = type(model.module).__name__, reason(error)
        logger.warning("%s launches decode steps operation by operation: %s", name, why)
        return RecordedDecode(model, why_not=why)
    if decode.logits is None or not launches:
        return RecordedDecode(model, why_not=NO_MEMORY)
    planned = backend if isinstance(backend, PlannedBackend) else None
    graphed = GraphedModel(model, buffers, launches, decode.logits, planned)
    return RecordedDecode(graphed, largest=max(launches))
