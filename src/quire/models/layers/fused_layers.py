"""Parts of a decoder over packed weights and fused kernels: RMSNorm, gated MLP, attention with
rotary embeddings, and the layer that is made of these alone. Each stands in for the forward of a
transformers module; `module_replacement.py` finds where.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.hf import PagedAttentionHook
from quire.models.layers.layer_kernels import LayerKernels
from quire.models.layers.linears import PackedForward
from quire.models.native.decoder.fused import HeadLayout, NormParams
from quire.models.recurrent.hook import RecurrentForward

RotaryEmbeddings = tuple[Tensor, Tensor]
"""`cos` and `sin`, each [1, T, rotary_dim]."""


@dataclass(frozen=True, slots=True)
class NormForward:
    """Stands in for the forward of an RMSNorm. Rows of another dtype than its weight's, as where
    residual sums are kept in float32, are rounded to that first."""

    kernels: LayerKernels
    scale: NormParams

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.norm(x.to(self.scale.weight.dtype).contiguous(), self.scale)


@dataclass(frozen=True, slots=True)
class GatedForward:
    """Stands in for the forward of an MLP: down(act(gate(x)) * up(x))."""

    kernels: LayerKernels
    gate_up: PackedForward
    down: PackedForward
    act: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.kernels.gate(self.gate_up(x), self.act))


@dataclass(frozen=True, slots=True)
class AttentionForward:
    """Stands in for the forward of an attention module. Where it `is_gated`, a gate follows each
    head's query among the projections, and the head's output is multiplied by its sigmoid."""

    kernels: LayerKernels
    qkv: PackedForward
    out: PackedForward
    heads: HeadLayout
    hook: PagedAttentionHook
    is_gated: bool = False

    def __call__(
        self, hidden_states: Tensor, position_embeddings: RotaryEmbeddings, **_: object
    ) -> tuple[Tensor, None]:
        return self.out(self.attend(hidden_states, position_embeddings)), None

    def attend(self, hidden_states: Tensor, position_embeddings: RotaryEmbeddings) -> Tensor:
        """Return the input of `out`: [1, T, heads * head_size]."""
        step, (cos, sin) = self.hook.context.attention, position_embeddings
        if step is None:
            raise RuntimeError("the module was called outside of HFModel.forward")
        rows = self.qkv(hidden_states)[0]
        num_query, num_key, head_size = self.heads[:3]
        gates = None
        if self.is_gated:
            pairs = rows.view(len(rows), -1, head_size)
            queries, gates = pairs[:, : 2 * num_query : 2], pairs[:, 1 : 2 * num_query : 2]
            rows = torch.cat([queries, pairs[:, 2 * num_query :]], 1).flatten(1)
        self.kernels.rope(rows, self.heads, cos[0], sin[0])
        heads = rows.view(len(rows), -1, head_size)
        query, key, value = heads.split_with_sizes(
            [num_query, num_key, heads.shape[1] - num_query - num_key], 1
        )
        found = step.attend(self.hook.layer, query, key, value)
        if gates is not None:
            found = found.contiguous()
            self.kernels.gate_heads(found, gates)
        return found.view(1, len(rows), -1)


@dataclass(frozen=True, slots=True)
class RecurrentMixer:
    """Stands in a layer where attention would: a recurrent module, whose output needs no further
    projection."""

    forward: RecurrentForward

    def attend(self, hidden_states: Tensor, _: RotaryEmbeddings) -> Tensor:
        """Return the output of the module, [1, T, hidden_size]."""
        return self.forward(hidden_states)

    def out(self, mixed: Tensor) -> Tensor:
        """Return the output as it is."""
        return mixed


class LayerNorms(NamedTuple):
    """The norms of a decoder layer, each None if the layer has none: of the input and output of
    attention, and of the MLP."""

    before: NormParams | None
    attended: NormParams | None
    between: NormParams | None
    finished: NormParams | None


@dataclass(frozen=True, slots=True)
class LayerForward:
    """Stands in for the forward of a decoder layer: y = x + attended(attention(before(x))), then
    y + finished(mlp(between(y))). A recurrent module may stand in the place of attention.

    Overwrites its input, [1, T, hidden_size].
    """

    kernels: LayerKernels
    norms: LayerNorms
    attention: AttentionForward | RecurrentMixer
    mlp: GatedForward

    def __call__(
        self, hidden_states: Tensor, position_embeddings: RotaryEmbeddings, **_: object
    ) -> Tensor:
        return self.finish(hidden_states, self.attend(hidden_states, position_embeddings))

    def attend(self, hidden_states: Tensor, position_embeddings: RotaryEmbeddings) -> Tensor:
        normed = self._norm(hidden_states, self.norms.before)
        return self.attention.attend(normed, position_embeddings)

    def finish(self, hidden_states: Tensor, attended: Tensor) -> Tensor:
        """Add the attention and the MLP to `hidden_states`; both arguments have the same rows."""
        kernels, norms = self.kernels, self.norms
        added = self._norm(self.attention.out(attended), norms.attended)
        if norms.between is None:
            states = normed = kernels.sum(hidden_states, added)
        else:
            states, normed = hidden_states, kernels.norm(hidden_states, norms.between, added)
        return kernels.sum(states, self._norm(self.mlp(normed), norms.finished))

    def _norm(self, x: Tensor, norm: NormParams | None) -> Tensor:
        return x if norm is None else self.kernels.norm(x, norm)
