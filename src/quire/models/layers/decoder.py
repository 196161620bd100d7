"""The forward of a whole model that is made of fused layers alone: an embedding, layers, a norm and
a head. After the last attention only the tokens whose logits are needed are computed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quire.models.attention.cpu import CPUStep
from quire.models.attention.hook import AttentionContext
from quire.models.layers.fused_layers import LayerForward, RotaryEmbeddings
from quire.models.layers.layer_kernels import LayerKernels
from quire.models.layers.native_decoder import NativeDecoder
from quire.models.native.decoder.fused import NormParams


class LogitsOutput(NamedTuple):
    """The output of a forward: `logits` [1, R, vocab_size]. transformers' output has more
    fields."""

    logits: Tensor


@dataclass(frozen=True, slots=True)
class DecoderRotary:
    """The rotary embeddings of a decoder's layers.

    kinds: the kinds of layer that `module` has frequencies for; (None,) where it knows no kinds.
    of_layers: for each layer, the index of its kind.
    """

    module: nn.Module
    kinds: tuple[str | None, ...]
    of_layers: tuple[int, ...]

    def __call__(self, states: Tensor, position_ids: Tensor) -> tuple[RotaryEmbeddings, ...]:
        """Return the cosines and sines of each kind."""
        if self.kinds == (None,):
            return (self.module(states, position_ids),)
        return tuple(self.module(states, position_ids, kind) for kind in self.kinds)


@dataclass(slots=True)
class DecoderForward:
    """Stands in for the forward of a causal language model.

    context: the step that runs.
    cap: what logits are capped at, cap * tanh(logits / cap) (Gemma 2, arXiv 2408.00118); None: not.
    native: the same layers as one call of the C++ kernels, used where attention is theirs too.
    """

    embedding: nn.Module
    rotary: DecoderRotary
    layers: tuple[LayerForward, ...]
    kernels: LayerKernels
    scale: NormParams
    head: nn.Module
    cap: float | None
    native: NativeDecoder | None
    context: AttentionContext

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: object
    ) -> LogitsOutput:
        states = self.embedding(input_ids)
        rotary = self.rotary(states, position_ids)
        context = self.context
        wanted = context.states_indices
        if wanted is None:
            last = self._normed(states, rotary, logits_to_keep)
        else:
            indices, order = torch.cat((logits_to_keep, wanted)).sort()
            rows = torch.empty_like(order)
            rows[order] = torch.arange(len(order), device=order.device)
            normed = self._normed(states, rotary, indices)
            context.states = normed[0, rows[len(logits_to_keep) :]]
            last = normed[:, rows[: len(logits_to_keep)]]
        logits = self.head(last)
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return LogitsOutput(logits)

    def _normed(
        self, states: Tensor, rotary: tuple[RotaryEmbeddings, ...], logits_indices: Tensor
    ) -> Tensor:
        """Return the normed states [1, R, hidden_size] of these tokens; `states` is overwritten."""
        step = self.context.attention
        if self.native is not None and isinstance(step, CPUStep):
            access = self.context.recurrent.access
            if self.native.takes(access):
                return self.native.run(step, access, states, rotary, logits_indices)
        return self._one_by_one(states, rotary, logits_indices)

    def _one_by_one(
        self, states: Tensor, rotary: tuple[RotaryEmbeddings, ...], logits_indices: Tensor
    ) -> Tensor:
        """Run layer after layer, and return the normed states [1, R, hidden_size]."""
        own = [rotary[kind] for kind in self.rotary.of_layers]
        for layer, embeddings in zip(self.layers[:-1], own, strict=False):
            states = layer(states, embeddings)
        last = self.layers[-1]
        attended = last.attend(states, own[-1])
        if len(logits_indices) < states.shape[1]:
            states, attended = states[:, logits_indices], attended[:, logits_indices]
        return self.kernels.norm(last.finish(states, attended), self.scale)
