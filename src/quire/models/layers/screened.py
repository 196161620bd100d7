"""A head that is asked for the largest logit of each row alone: products of bytes choose the panels
of its weight that may hold it, and only those are multiplied in bfloat16. What comes out as largest
is what the whole product's is, its equals among them.

The bytes are a second form of the head's weight, half as large as the weight was. They are made
where that head is a good part of what a step multiplies.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.layers.decoder import DecoderForward
from quire.models.layers.linears import MIB, PackedForward, PackedLookup
from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.linear import PackedWeight
from quire.models.native.linear.screen import Screen, ScreenKernel

logger = logging.getLogger(__name__)

LEAST_SHARE = 1 / 10
"""Of all packed weights, that a head must be of."""
MOST_CHOSEN = 1 / 4
"""Of the panels: where more are chosen, the whole product takes no longer."""
REST_STEPS = 32
"""Without another try, where too many were chosen."""
SCREEN, BOUNDS = "screen_bytes", "screen_bounds"
"""Buffers of a head, so that they count as weights."""


@dataclass(slots=True)
class ScreenedHead:
    """`head` computes the whole product."""

    kernel: ScreenKernel
    screen: Screen
    head: PackedForward
    num_to_rest: int = 0

    def __call__(self, states: Tensor) -> Tensor:
        """[1, R, width] to [1, R, vocab_size]: every row has its largest entry, and -inf or the
        product's very numbers elsewhere."""
        rows = states[0]
        if self.num_to_rest > 0 or len(rows) == 0:
            self.num_to_rest = max(self.num_to_rest - 1, 0)
            return self.head(states)
        choice = self.kernel.choose(rows, self.screen)
        if choice.count > MOST_CHOSEN * self.screen.num_panels * len(rows):
            self.num_to_rest = REST_STEPS
            return self.head(states)
        return self.kernel.linear(rows, self.screen.weight, choice)[None]


def screen_head(module: nn.Module, kernels: ModelKernels) -> None:
    """Of a plain decoder with exact bfloat16 weights, if it is worth it."""
    decoder = vars(module).get("forward")
    if kernels.screen is None or not kernels.are_exact:
        return
    if not isinstance(decoder, DecoderForward):
        return
    head = vars(decoder.head).get("forward")
    if not isinstance(head, PackedForward) or head.bias is not None:
        return
    if head.weight.packed.dtype != torch.bfloat16:
        return
    if _num_weights(head.weight) < LEAST_SHARE * sum(map(_num_weights, _packed(module))):
        return
    screen = kernels.screen.pack(head.weight)
    if screen is None:
        return
    decoder.head.register_buffer(SCREEN, screen.packed, persistent=False)
    decoder.head.register_buffer(BOUNDS, screen.bounds, persistent=False)
    decoder.screened = ScreenedHead(kernels.screen, screen, head)
    logger.info("the head is screened by %.1f MiB of bytes", screen.packed.nbytes / MIB)


def screen_tensors(module: nn.Module) -> list[Tensor]:
    """Of each screen what a step reads whole."""
    found = (getattr(part, SCREEN, None) for part in module.modules())
    return [each for each in found if isinstance(each, Tensor)]


def screen_scratch_bytes(module: nn.Module, num_rows: int) -> int:
    """What a step that screens so many rows of logits takes beside these."""
    decoder = vars(module).get("forward")
    screened = decoder.screened if isinstance(decoder, DecoderForward) else None
    if not isinstance(screened, ScreenedHead):
        return 0
    return screened.kernel.working_bytes(screened.screen, num_rows)


def _packed(module: nn.Module) -> list[PackedWeight]:
    """Each weight once."""
    forwards = [vars(part).get("forward") for part in module.modules()]
    found = [each.weight for each in forwards if isinstance(each, PackedForward | PackedLookup)]
    return list({id(weight.packed): weight for weight in found}.values())


def _num_weights(weight: PackedWeight) -> int:
    return weight.num_rows * weight.num_columns
