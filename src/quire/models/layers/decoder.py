"""The forward of a whole model that is made of fused layers alone: an embedding, layers, a norm and
a head. After the last attention only the tokens whose logits are needed are computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from quire.models.attention.cpu import CPUStep
from quire.models.layers.fused_layers import LayerForward, RotaryEmbeddings
from quire.models.layers.native_decoder import NativeDecoder
from quire.models.native.decoder.fused import FusedKernels, NormParams


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
    kernels: FusedKernels
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
        step = context.attention
        if self.native is not None and isinstance(step, CPUStep):
            last = self.native.run(step, states, rotary, logits_to_keep)
        else:
            last = self._one_by_one(states, rotary, logits_to_keep)
        if context.greedy_only and self.greedy_head is not None:
            return LogitsOutput(self.greedy_head(last))
        return LogitsOutput(self.head(last))

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
