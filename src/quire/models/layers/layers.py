"""Parts of a decoder over packed weights and fused kernels: RMSNorm, gated MLP, attention with
rotary heads, and the layer made of these alone. Each stands in for the forward of a transformers
module; `surgery.py` finds where.
"""

from dataclasses import dataclass

from torch import Tensor

from quire.models.hf import PagedPort
from quire.models.layers.linears import PackedForward
from quire.models.native.decoder.fused import FusedKernels, Heads, Scale

Embeddings = tuple[Tensor, Tensor]
"""Cosines and sines, [1, T, rotary]."""


@dataclass(frozen=True, slots=True)
class NormForward:
    """Stands in for the forward of an RMSNorm."""

    kernels: FusedKernels
    scale: Scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.norm(x.contiguous(), self.scale)


@dataclass(frozen=True, slots=True)
class GatedForward:
    """Stands in for the forward of an MLP: down(act(gate(x)) * up(x))."""

    kernels: FusedKernels
    gate_up: PackedForward
    down: PackedForward
    act: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.kernels.gate(self.gate_up(x), self.act))


@dataclass(frozen=True, slots=True)
class AttentionForward:
    """Stands in for the forward of an attention module."""

    kernels: FusedKernels
    qkv: PackedForward
    out: PackedForward
    heads: Heads
    port: PagedPort

    def __call__(
        self, hidden_states: Tensor, position_embeddings: Embeddings, **_: object
    ) -> tuple[Tensor, None]:
        return self.out(self.attend(hidden_states, position_embeddings)), None

    def attend(self, hidden_states: Tensor, position_embeddings: Embeddings) -> Tensor:
        """What goes to `out`."""
        step, (cosines, sines) = self.port.current.attention, position_embeddings
        if step is None:
            raise RuntimeError("the module was called outside of HFModel.forward")
        rows = self.qkv(hidden_states)[0]
        self.kernels.rope(rows, self.heads, cosines[0], sines[0])
        num_query, num_key, width = self.heads[:3]
        heads = rows.view(len(rows), -1, width)
        query, key, value = heads.split_with_sizes(
            [num_query, num_key, heads.shape[1] - num_query - num_key], 1
        )
        found = step.attend(self.port.layer, query, key, value)
        return found.view(1, len(rows), -1)


@dataclass(frozen=True, slots=True)
class LayerForward:
    """Stands in for the forward of a decoder layer: x + attention(norm(x)), then + mlp(norm(.)).
    Computes in its input."""

    kernels: FusedKernels
    before: Scale
    attention: AttentionForward
    between: Scale
    mlp: GatedForward

    def __call__(
        self, hidden_states: Tensor, position_embeddings: Embeddings, **_: object
    ) -> Tensor:
        return self.finish(hidden_states, self.attend(hidden_states, position_embeddings))

    def attend(self, hidden_states: Tensor, position_embeddings: Embeddings) -> Tensor:
        normed = self.kernels.norm(hidden_states, self.before)
        return self.attention.attend(normed, position_embeddings)

    def finish(self, hidden_states: Tensor, attended: Tensor) -> Tensor:
        """Of the same rows, whichever they are."""
        kernels = self.kernels
        normed = kernels.norm(hidden_states, self.between, self.attention.out(attended))
        return kernels.sum(hidden_states, self.mlp(normed))
