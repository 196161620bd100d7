"""Recurrent operations between the captured pieces of a step: a piece leaves their inputs in
tensors that stay where they are, the kernels compute them as in a step that is launched, over the
tokens that are there, and the next piece reads what came of it.

Operations with inputs of the same shapes share these tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.graphs.capture import Cut
from quire.models.recurrent.kernels import (
    DeltaNetInputs,
    DeltaNetWeights,
    RecurrentKernels,
    ScanInputs,
)
from quire.models.recurrent.pieces import Pieces

MOST_OPERATIONS = 2
"""The most operations of a layer: a convolution, and a rule or a scan."""
Operation = Callable[[Sequence[Tensor], Pieces], Tensor]
"""Computes rows of outputs of rows of each input."""


class OperationBuffers(NamedTuple):
    """The inputs of an operation, and its output, each with a row for each token."""

    inputs: tuple[Tensor, ...]
    output: Tensor


class PieceRecurrence:
    """Computes recurrent operations between the pieces of steps of up to `max_num_tokens`."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._buffers: dict[tuple[object, ...], OperationBuffers] = {}
        self._pieces: Pieces | None = None
        self._num_tokens = 0

    def begin(self, pieces: Pieces | None, num_tokens: int) -> None:
        """Let the next replay compute `num_tokens` tokens by their pieces."""
        self._pieces, self._num_tokens = pieces, num_tokens

    def end(self) -> None:
        self._pieces = None

    def keep(self, inputs: Sequence[Tensor], output: Tensor) -> OperationBuffers:
        """Copy inputs to where they stay, and return the tensors that they share with others of
        their shapes, and with an output like `output`; made when there are none."""
        tensors = (*inputs, output)
        shapes = tuple((each.shape[1:], each.dtype) for each in tensors)
        if shapes not in self._buffers:
            rows = self._max_num_tokens
            *made, last = (each.new_zeros(rows, *each.shape[1:]) for each in tensors)
            self._buffers[shapes] = OperationBuffers(tuple(made), last)
        buffers = self._buffers[shapes]
        for buffer, each in zip(buffers.inputs, inputs, strict=True):
            buffer[: len(each)].copy_(each)
        return buffers

    def compute(self, operation: Operation, buffers: OperationBuffers) -> None:
        """Compute an operation on the results of the previous piece, in the current step."""
        assert self._pieces is not None, "a replay has begun a step with states"
        num = self._num_tokens
        found = operation([each[:num] for each in buffers.inputs], self._pieces)
        buffers.output[:num].copy_(found)


def no_pieces(device: torch.device) -> Pieces:
    """Return the pieces of a step without sequences."""
    none = torch.zeros(0, dtype=torch.int32, device=device)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    return Pieces(start, none, none, start)


@dataclass(frozen=True, slots=True)
class CuttingKernels:
    """Implements `RecurrentKernels` for a capture: each operation ends a piece, and is computed by
    `kernels` where the step is replayed."""

    kernels: RecurrentKernels
    recurrence: PieceRecurrence
    cut: Cut

    @property
    def is_replayable(self) -> bool:
        return False

    def causal_conv(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        states: Tensor,
        pieces: Pieces,
        *,
        is_activated: bool,
    ) -> Tensor:
        def compute(inputs: Sequence[Tensor], now: Pieces) -> Tensor:
            (own,) = inputs
            return self.kernels.causal_conv(
                own, weight, bias, states, now, is_activated=is_activated
            )

        return self._between((rows,), rows, compute)

    def gated_delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        decay: Tensor,
        beta: Tensor,
        states: Tensor,
        pieces: Pieces,
    ) -> Tensor:
        def compute(inputs: Sequence[Tensor], now: Pieces) -> Tensor:
            queries, keys, values, decays, betas = inputs
            return self.kernels.gated_delta_rule(queries, keys, values, decays, betas, states, now)

        return self._between((query, key, value, decay, beta), value, compute)

    def gated_delta_net(
        self,
        inputs: DeltaNetInputs,
        weights: DeltaNetWeights,
        states: tuple[Tensor, Tensor],
        pieces: Pieces,
    ) -> Tensor:
        def compute(rows: Sequence[Tensor], now: Pieces) -> Tensor:
            return self.kernels.gated_delta_net(DeltaNetInputs(*rows), weights, states, now)

        return self._between(inputs, inputs.gate, compute)

    def state_space(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return self._scan(inputs, partial(self.kernels.state_space, states=states))

    def selective_scan(self, inputs: ScanInputs, states: Tensor, pieces: Pieces) -> Tensor:
        return self._scan(inputs, partial(self.kernels.selective_scan, states=states))

    def _scan(self, inputs: ScanInputs, scan: Callable[..., Tensor]) -> Tensor:
        def compute(rows: Sequence[Tensor], now: Pieces) -> Tensor:
            values, steps, b, c = rows
            given = inputs._replace(rows=values, steps=steps, b=b, c=c)
            return scan(given, pieces=now)

        return self._between((inputs.rows, inputs.steps, inputs.b, inputs.c), inputs.rows, compute)

    def _between(self, inputs: Sequence[Tensor], output: Tensor, operation: Operation) -> Tensor:
        """Compute an operation between two pieces; return its output, which is like `output`."""
        buffers = self.recurrence.keep(inputs, output)
        self.cut(partial(self.recurrence.compute, operation, buffers))
        return buffers.output[: len(output)]
