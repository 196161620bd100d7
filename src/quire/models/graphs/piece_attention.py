"""Attention between the captured pieces of a step: a piece leaves its queries, keys and values in
tensors that stay where they are, the backend attends as in a step that is launched, and the next
piece reads what came of it.

Layers of one shape share these tensors. Of a padded step only the tokens that are there are ever
given to the backend, so that padding is neither stored nor seen.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from quire.models.attention.backend import AttentionStep
from quire.models.config import LayerFacts
from quire.models.graphs.capture import Cut


class AttentionBuffers(NamedTuple):
    """The inputs and the output of attention, [max_num_tokens, heads, size] each. The value of a
    latent layer is a part of its key."""

    query: Tensor
    key: Tensor
    value: Tensor
    attended: Tensor


class PieceAttention:
    """Attends between the pieces of steps of up to `max_num_tokens` tokens."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._indices: dict[tuple[object, ...], int] = {}
        self._buffers: list[AttentionBuffers] = []
        self._step: AttentionStep | None = None
        self._rows: list[AttentionBuffers] = []

    def cutting(self, size: int, cut: Cut) -> "CuttingStep":
        """Return the attention of a captured step of `size` tokens, each layer of which cuts."""
        return CuttingStep(self, size, cut)

    def begin(self, step: AttentionStep, num_tokens: int) -> None:
        """Let the next replay attend by `step`, of `num_tokens` tokens."""
        self._step = step
        self._rows = [_first_rows(each, num_tokens) for each in self._buffers]

    def end(self) -> None:
        self._step, self._rows = None, []

    def keep(self, layer: LayerFacts, query: Tensor, key: Tensor, value: Tensor) -> int:
        """Copy the inputs of a layer's attention to where they stay, and return the index of the
        tensors that layers of its shape share, made when one first attends."""
        shape = (layer.is_latent, query.shape[1:], key.shape[1:], layer.v_head_size, query.dtype)
        if shape not in self._indices:
            self._indices[shape] = len(self._buffers)
            self._buffers.append(self._new_buffers(layer, query, key, value))
        index = self._indices[shape]
        rows = self.rows(index, len(query))
        rows.query.copy_(query)
        rows.key.copy_(key)
        if not layer.is_latent:
            rows.value.copy_(value)
        return index

    def rows(self, index: int, num_tokens: int) -> AttentionBuffers:
        """Return the tensors of an index for `num_tokens` tokens."""
        return _first_rows(self._buffers[index], num_tokens)

    def attend(self, layer: LayerFacts, index: int, sinks: Tensor | None) -> None:
        """Compute attention on the results of the previous piece, in the current step."""
        assert self._step is not None, "a replay has begun a step"
        query, key, value, attended = self._rows[index]
        attended.copy_(self._step.attend(layer, query, key, value, sinks))

    def _new_buffers(
        self, layer: LayerFacts, query: Tensor, key: Tensor, value: Tensor
    ) -> AttentionBuffers:
        rows = self._max_num_tokens
        keys = key.new_zeros(rows, *key.shape[1:])
        values = value.new_zeros(rows, *value.shape[1:]) if not layer.is_latent else keys
        return AttentionBuffers(
            query.new_zeros(rows, *query.shape[1:]),
            keys,
            values[..., : layer.v_head_size],
            query.new_zeros(rows, query.shape[1], layer.v_head_size),
        )


@dataclass(frozen=True, slots=True)
class CuttingStep:
    """Implements `AttentionStep` for a capture: it ends a piece at each layer's attention, and
    attends to nothing."""

    attention: PieceAttention
    size: int
    cut: Cut

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        index = self.attention.keep(layer, query, key, value)
        self.cut(partial(self.attention.attend, layer, index, sinks))
        return self.attention.rows(index, self.size).attended


def _first_rows(buffers: AttentionBuffers, num_tokens: int) -> AttentionBuffers:
    return AttentionBuffers(*(each[:num_tokens] for each in buffers))
