"""Decode steps as CUDA graphs: steps in which every request computes one token, whole, attention
included, for each of a list of batch sizes.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.models.attention.backend import AttentionStep
from quire.models.attention.triton.inputs import StepInputs
from quire.models.batch import Batch
from quire.models.graphs.buffers import Buffers
from quire.models.graphs.capture import Cut, GraphDevice, Recording
from quire.models.graphs.recorded import CaptureKind, CaptureResult, record
from quire.models.graphs.sizes import ladder
from quire.models.hf import HFModel


@runtime_checkable
class ReplayableBackend(Protocol):
    """An attention backend whose steps can be captured."""

    def over(self, inputs: StepInputs) -> AttentionStep:
        """Return a step that reads its inputs from tensors each time it is launched."""
        ...


class DecodeGraphs:
    """Implements `ReplayedSteps` for steps of one token a request.

    recordings: by batch size, a captured step.
    logits: [max_num_seqs, vocab_size], where replayed steps write them.
    """

    name = "full"

    def __init__(
        self, buffers: Buffers, recordings: Mapping[int, Recording], logits: Tensor
    ) -> None:
        self._buffers = buffers
        self._recordings = recordings
        self._sizes = sorted(recordings)
        self._logits = logits

    def replay(self, batch: Batch) -> Tensor | None:
        size = self._size(batch)
        if size is None:
            return None
        self._buffers.fill(batch, size)
        self._recordings[size].replay()
        return self._logits[: len(batch.context_lens)]

    def _size(self, batch: Batch) -> int | None:
        """Return the batch size of the graph to replay, or None if there is none."""
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
        self._logits: Tensor | None = None

    def run(self, size: int, cut: Cut) -> None:
        """Compute a step of `size` requests, whole."""
        buffers = self._buffers
        logits = self._model.compute(
            buffers.input_ids[:size],
            buffers.positions[:size],
            buffers.logits_indices[:size],
            self._backend.over(buffers.inputs(size)),
            buffers.pieces(size),
        )
        if self._logits is None:
            self._logits = logits.new_empty(len(buffers.input_ids), logits.shape[1])
        self._logits[:size].copy_(logits)

    def graphs(self, recordings: Mapping[int, Recording]) -> DecodeGraphs:
        assert self._logits is not None, "steps were computed"
        return DecodeGraphs(self._buffers, recordings, self._logits)


@torch.inference_mode()
def record_decode(
    model: HFModel,
    backend: ReplayableBackend,
    buffers: Buffers,
    device: GraphDevice,
    on_progress: Callable[[int, int], None],
) -> CaptureResult:
    """Capture the decode steps of `model`, whose backend is `backend`. Where capturing fails the
    model is as it was."""
    decode = _Decode(model, backend, buffers)
    kind = CaptureKind("decode steps", ladder(len(buffers.input_ids)), decode.run)
    return record(kind, type(model.module).__name__, device, decode.graphs, on_progress)
