"""The forward of a whole model that is made of fused layers alone: an embedding, layers, a norm and
a head. After the last attention only the tokens whose logits are needed are computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quire.models.attention.cpu import CPUStep
from quire.models.layers.fused_layers import LayerForward, RotaryEmbeddings
from quire.models.layers.layer_kernels import LayerKernels
from quire.models.layers.native_decoder import NativeDecoder
from quire.models.native.decoder.fused import NormParams


class LogitsOutput(NamedTuple):
    """The output of a forward: `logits` [1, R, vocab_size]. transformers' output has more
    fields."""

    logits: Tensor


@dataclass(slots=True)
class DecoderForward:
    """Stands in for the forward of a causal language model.

    native: the same layers as one call of the C++ kernels, used where attention is theirs too.
    greedy_head: computes the logits of greedy-only steps; None where `head` does.
    """

    embedding: nn.Module
    rotary: nn.Module
    layers: tuple[LayerForward, ...]
    kernels: LayerKernels
    scale: NormParams
    head: nn.Module
    native: NativeDecoder | None
    greedy_head: Callable[[Tensor], Tensor] | None = None

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: object
    ) -> LogitsOutput:
        states = self.embedding(input_ids)
        rotary = self.rotary(states, position_ids)
        context = self.layers[0].attention.hook.context
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
        if context.greedy_only and self.greedy_head is not None:
            return LogitsOutput(self.greedy_head(last))
        return LogitsOutput(self.head(last))

    def _normed(self, states: Tensor, rotary: RotaryEmbeddings, logits_indices: Tensor) -> Tensor:
        """Return the normed states [1, R, hidden_size] of these tokens; `states` is overwritten."""
        step = self.layers[0].attention.hook.context.attention
        if self.native is not None and isinstance(step, CPUStep):
            return self.native.run(step, states, rotary, logits_indices)
        return self._one_by_one(states, rotary, logits_indices)

    def _one_by_one(
        self, states: Tensor, rotary: RotaryEmbeddings, logits_indices: Tensor
    ) -> Tensor:
        """Run layer after layer, and return the normed states [1, R, hidden_size]."""
        for layer in self.layers[:-1]:
            states = layer(states, rotary)
        last = self.layers[-1]
        attended = last.attend(states, rotary)
        if len(logits_indices) < states.shape[1]:
            states, attended = states[:, logits_indices], attended[:, logits_indices]
        return self.kernels.norm(last.finish(states, attended), self.scale)
