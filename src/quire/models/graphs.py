"""Decode steps as CUDA graphs: on a GPU a step of few tokens takes longer to launch, one operation
after the other, than to compute. So steps in which every request computes one token are captured
once for each of a list of batch sizes, over tensors that stay where they are; running one means to
fill those and replay the graph. A step of another kind, or a larger one, is launched as usual.

CUDA graphs: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.cache.block_copies import BlockCopy, CopyTime
from quire.models.attention.backend import AttentionStep
from quire.models.attention.triton.inputs import StepBounds, StepInputs
from quire.models.batch import Batch
from quire.models.hf import HFModel

logger = logging.getLogger(__name__)

FINE_UPTO, FINE_STEP, COARSE_STEP = 256, 8, 16
"""Distances between captured batch sizes; a step is padded to the next size."""
NO_SLOT = -1
RECORD_BYTES = 16 << 20
"""The memory that a driver keeps for one graph: a generous guess, to be compared with the memory
receipt."""

Launch = Callable[[], None]


class Recorder(Protocol):
    """Captures the launches of a device."""

    def record(self, compute: Launch) -> Launch:
        """Run `compute`, and return what replays its launches over the same tensors.

        Raises RuntimeError where that is not possible.
        """


@runtime_checkable
class ReplayableBackend(Protocol):
    """An attention backend whose steps can be captured."""

    def over(self, inputs: StepInputs) -> AttentionStep:
        """Return a step that reads its inputs from tensors each time it is launched."""
        ...


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """`max_num_blocks` are those of one request, in each of `num_groups` layer groups."""

    max_num_seqs: int
    max_model_len: int
    max_num_blocks: int
    num_groups: int


def ladder(max_num_seqs: int) -> list[int]:
    """Return the batch sizes that are captured, rising."""
    fine = range(FINE_STEP, min(max_num_seqs, FINE_UPTO) + 1, FINE_STEP)
    coarse = range(FINE_UPTO + COARSE_STEP, max_num_seqs + 1, COARSE_STEP)
    sizes = {1, 2, 4, *fine, *coarse, max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def record_bytes(max_num_seqs: int, token_bytes: int) -> int:
    """Return the bytes that capturing takes: graphs, activations of one step, and kept logits.

    `token_bytes` are a token's activations and logits.
    """
    return len(ladder(max_num_seqs)) * RECORD_BYTES + 2 * max_num_seqs * token_bytes


class Buffers:
    """The input tensors of decode steps of up to `max_num_seqs` requests.

    A smaller step uses the first rows of each.
    """

    def __init__(self, limits: DecodeLimits, device: torch.device) -> None:
        size = limits.max_num_seqs
        self._limits = limits
        self._counts = torch.arange(size + 1, dtype=torch.int32, device=device)
        self.input_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(size, dtype=torch.int64, device=device)
        self.query_starts = torch.zeros_like(self._counts)
        self.context_lens = torch.ones(size, dtype=torch.int32, device=device)
        rows = (limits.num_groups, size)
        self.slots = torch.full(rows, NO_SLOT, dtype=torch.int64, device=device)
        tables = (*rows, limits.max_num_blocks)
        self.block_tables = torch.zeros(tables, dtype=torch.int32, device=device)
        self.logits_indices = torch.arange(size, device=device)

    def inputs(self, size: int) -> StepInputs:
        return StepInputs(
            self.query_starts[: size + 1],
            self.context_lens[:size],
            tuple(table[:size] for table in self.block_tables),
            tuple(slots[:size] for slots in self.slots),
            StepBounds(
                max_context=self._limits.max_model_len,
                has_singles=True,
                has_longer=False,
                longest_chunk=1,
            ),
        )

    def fill(self, batch: Batch, size: int) -> None:
        """Copy in a step of at most `size` requests of one token each, on the device.

        The rows beyond them compute nothing that is kept.
        """
        count = len(batch.context_lens)
        self.input_ids[:count].copy_(batch.input_ids)
        self.positions[:count].copy_(batch.positions)
        torch.clamp(self._counts[: size + 1], max=count, out=self.query_starts[: size + 1])
        torch.add(batch.positions, 1, out=self.context_lens[:count])
        self.input_ids[count:size].zero_()
        self.positions[count:size].zero_()
        for group, (slots, table) in enumerate(zip(batch.slots, batch.block_tables, strict=True)):
            self.slots[group, :count].copy_(slots)
            self.slots[group, count:size].fill_(NO_SLOT)
            self.block_tables[group, :count, : table.shape[1]].copy_(table)


class GraphedModel:
    """Implements `Model` by `model`, whose decode steps are replayed from CUDA graphs.

    launches: by batch size, what replays a captured step.
    logits: [max_num_seqs, vocab_size], where replayed steps write them, valid until the next step.
    """

    def __init__(
        self, model: HFModel, buffers: Buffers, launches: dict[int, Launch], logits: Tensor
    ) -> None:
        self._model = model
        self._buffers = buffers
        self._launches = launches
        self._sizes = sorted(launches)
        self._logits = logits

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy], new_blocks: Collection[int]) -> None:
        self._model.copy_blocks(copies, new_blocks)

    def take_copy_time(self) -> CopyTime:
        return self._model.take_copy_time()

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        size = self._size(batch)
        if size is None:
            return self._model.forward(batch)
        self._buffers.fill(batch, size)
        self._launches[size]()
        return self._logits[: len(batch.context_lens)]

    def _size(self, batch: Batch) -> int | None:
        """Return the batch size of the graph to replay, or None if the step must be launched."""
        count = len(batch.context_lens)
        is_decode = len(batch.positions) == len(batch.logits_indices) == count
        if not is_decode or count > self._sizes[-1]:
            return None
        return next(size for size in self._sizes if size >= count)


class CUDAGraphs:
    """Captures CUDA graphs of one device, which share their memory: only one runs at a time.

    All are captured on one stream, since torch caches freed memory for each stream separately.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, compute: Launch) -> Launch:
        """Capture `compute`, after a first run that makes kernels and workspaces."""
        graph = torch.cuda.CUDAGraph()
        self._beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._beside):  # left again also where a recording fails
            compute()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._beside, capture_error_mode="thread_local"
            ):
                compute()
        return graph.replay


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


@torch.inference_mode()
def record_decode(
    model: HFModel,
    backend: ReplayableBackend,
    buffers: Buffers,
    recorder: Recorder,
    on_progress: Callable[[int, int], None],
) -> HFModel | GraphedModel:
    """Capture the decode steps of `model`, and return it with these.

    The largest is captured first: the memory that it takes suffices for the others. `backend` is
    the model's. Returns `model` itself where capturing fails.
    """
    sizes = ladder(len(buffers.input_ids))
    launches: dict[int, Launch] = {}
    decode = _Decode(model, backend, buffers)
    try:
        for number, size in enumerate(reversed(sizes)):
            on_progress(number, len(sizes))
            launches[size] = recorder.record(partial(decode.run, size))
    except RuntimeError as error:
        logger.warning("decode steps are launched operation by operation: %s", error)
        return model
    on_progress(len(sizes), len(sizes))
    if decode.logits is None:
        return model
    return GraphedModel(model, buffers, launches, decode.logits)
