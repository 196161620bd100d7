"""The forward of a whole model that is made of fused layers alone: an embedding, layers, a norm and
a head. What comes after the last attention is computed of the tokens alone whose logits are wanted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from quire.models.attention.cpu import CPUStep
from quire.models.layers.layers import Embeddings, LayerForward
from quire.models.layers.program import Program
from quire.models.native.decoder.fused import FusedKernels, Scale


class Said(NamedTuple):
    """What a model returns, of all that transformers' would: logits [1, R, vocab_size]."""

    logits: Tensor


@dataclass(slots=True)
class DecoderForward:
    """`program`: the same layers as one call, where attention's kernels are C++ too. `screened`:
    the head where only the largest logits are wanted; None: `head`."""

    embedding: nn.Module
    rotary: nn.Module
    layers: tuple[LayerForward, ...]
    kernels: FusedKernels
    scale: Scale
    head: nn.Module
    program: Program | None
    screened: Callable[[Tensor], Tensor] | None = None

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: object
    ) -> Said:
        states = self.embedding(input_ids)
        turns = self.rotary(states, position_ids)
        current = self.layers[0].attention.port.current
        step = current.attention
        if self.program is not None and isinstance(step, CPUStep):
            wanted = self.program.run(step, states, turns, logits_to_keep)
        else:
            wanted = self._one_by_one(states, turns, logits_to_keep)
        if current.only_largest and self.screened is not None:
            return Said(self.screened(wanted))
        return Said(self.head(wanted))

    def _one_by_one(self, states: Tensor, turns: Embeddings, wanted: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            states = layer(states, turns)
        last = self.layers[-1]
        attended = last.attend(states, turns)
        if len(wanted) < states.shape[1]:
            states, attended = states[:, wanted], attended[:, wanted]
        return self.kernels.norm(last.finish(states, attended), self.scale)
