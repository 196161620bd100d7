"""Steps with prefill as CUDA graphs: everything but attention and recurrences is captured, in
pieces from one layer's attention to the next's, for each of a list of step sizes in tokens. Both
depend on how a step is made up of chunks, and are launched between the pieces.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.attention.backend import AttentionBackend
from quire.models.batch import Batch
from quire.models.graphs.capture import Cut, GraphDevice, Recording
from quire.models.graphs.piece_attention import PieceAttention
from quire.models.graphs.piece_recurrence import CuttingKernels, PieceRecurrence, no_pieces
from quire.models.graphs.recorded import CaptureKind, CaptureResult, record
from quire.models.graphs.sizes import num_piece_rows, piece_ladder
from quire.models.hf import HFModel


class PieceLimits(NamedTuple):
    """The most tokens and requests of a step."""

    max_num_tokens: int
    max_num_seqs: int


class PieceBuffers:
    """The input tensors of steps in pieces; a smaller step uses the first entries of each."""

    def __init__(self, limits: PieceLimits, device: torch.device) -> None:
        self.sizes = piece_ladder(limits.max_num_tokens)
        self._max_num_seqs = limits.max_num_seqs
        largest = max(self.sizes, default=0)
        self.input_ids = torch.zeros(largest, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.input_ids)
        self.logits_indices = torch.zeros_like(self.input_ids[: self.num_rows(largest)])

    def num_rows(self, size: int) -> int:
        """Return how many tokens' logits a captured step of `size` tokens computes."""
        return num_piece_rows(size, self._max_num_seqs)

    def fill(self, batch: Batch, size: int) -> None:
        """Copy in a step of at most `size` tokens, on the device, and zeros after it."""
        rows = self.num_rows(size)
        _fill(self.input_ids[:size], batch.input_ids)
        _fill(self.positions[:size], batch.positions)
        _fill(self.logits_indices[:rows], batch.logits_indices)


class Between(NamedTuple):
    """The operations between the pieces of a step."""

    attention: PieceAttention
    recurrence: PieceRecurrence


class PieceGraphs:
    """Implements `ReplayedSteps` for steps of any chunks.

    recordings: by tokens, a captured step.
    logits: where replayed steps write them.
    """

    name = "piecewise"

    def __init__(
        self,
        backend: AttentionBackend,
        between: Between,
        buffers: PieceBuffers,
        recordings: Mapping[int, Recording],
        logits: Tensor,
    ) -> None:
        self._backend = backend
        self._attention, self._recurrence = between
        self._buffers = buffers
        self._recordings = recordings
        self._sizes = sorted(recordings)
        self._logits = logits

    def replay(self, batch: Batch) -> Tensor | None:
        num_rows = len(batch.logits_indices)
        size = self._size(len(batch.positions), num_rows)
        if size is None:
            return None
        self._buffers.fill(batch, size)
        self._attention.begin(self._backend.begin(batch), len(batch.positions))
        self._recurrence.begin(batch.pieces, len(batch.positions))
        try:
            self._recordings[size].replay()
        finally:
            self._attention.end()
            self._recurrence.end()
        return self._logits[:num_rows]

    def _size(self, num_tokens: int, num_rows: int) -> int | None:
        """Return the tokens of the smallest captured step that holds so many tokens and rows of
        logits, or None if there is none."""
        return next(
            (
                size
                for size in self._sizes
                if size >= num_tokens and self._buffers.num_rows(size) >= num_rows
            ),
            None,
        )


class _Pieces:
    """Computes a step over the buffers, and copies its logits to where they stay."""

    def __init__(self, model: HFModel, buffers: PieceBuffers) -> None:
        self._model = model
        self._buffers = buffers
        largest = len(buffers.input_ids)
        self._between = Between(PieceAttention(largest), PieceRecurrence(largest))
        self._no_pieces = no_pieces(model.device)
        self._logits: Tensor | None = None

    def run(self, size: int, cut: Cut) -> None:
        """Compute a step of `size` tokens, which is cut at the attention of each layer, and at each
        recurrent operation."""
        buffers, rows, model = self._buffers, self._buffers.num_rows(size), self._model
        if model.kernels is not None:
            cutting = CuttingKernels(model.kernels, self._between.recurrence, cut)
            model = replace(model, kernels=cutting)
        logits = model.compute(
            buffers.input_ids[:size],
            buffers.positions[:size],
            buffers.logits_indices[:rows],
            self._between.attention.cutting(size, cut),
            self._no_pieces,
        )
        if self._logits is None:
            self._logits = logits.new_empty(len(buffers.logits_indices), logits.shape[1])
        self._logits[:rows].copy_(logits)

    def graphs(self, recordings: Mapping[int, Recording]) -> PieceGraphs:
        assert self._logits is not None, "steps were computed"
        backend, buffers = self._model.backend, self._buffers
        return PieceGraphs(backend, self._between, buffers, recordings, self._logits)


@torch.inference_mode()
def record_pieces(
    model: HFModel,
    buffers: PieceBuffers,
    device: GraphDevice,
    on_progress: Callable[[int, int], None],
) -> CaptureResult:
    """Capture steps of `model` in pieces. Where capturing fails the model is as it was."""
    pieces = _Pieces(model, buffers)
    kind = CaptureKind("steps with prefill", buffers.sizes, pieces.run)
    return record(kind, type(model.module).__name__, device, pieces.graphs, on_progress)


def _fill(buffer: Tensor, values: Tensor) -> None:
    buffer[: len(values)].copy_(values)
    buffer[len(values) :].zero_()
