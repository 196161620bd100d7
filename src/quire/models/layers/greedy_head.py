"""The head of greedy-only steps, by candidate pruning: an int8 product bounds every logit, and only
the panels of the head's weight that may hold a row's largest one are multiplied in bfloat16. The
largest logits, and all that equal them, are those of the whole product to the bit.

The int8 copy is half as large as the head's bfloat16 weight. It is made only where the head is a
good part of what a step multiplies.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.layers.decoder import DecoderForward
from quire.models.layers.linears import MIB, PackedForward, PackedLookup
from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.candidates import CandidateKernel, CandidateWeight
from quire.models.native.packed_weight import PackedWeight

logger = logging.getLogger(__name__)

LEAST_SHARE = 1 / 10
"""The share of all packed weights that the head must have."""
MAX_CANDIDATE_SHARE = 1 / 4
"""The share of panels: where more of them are candidates, the whole product takes no longer."""
PAUSE_STEPS = 32
"""Steps without candidate pruning after one with too many candidates."""
INT8_BUFFER, BOUNDS_BUFFER = "candidate_int8", "candidate_bounds"
"""Names of the head's buffers, which therefore count as weights."""


@dataclass(slots=True)
class GreedyHead:
    """Stands in for `head`, which computes the whole product, in greedy-only steps."""

    kernel: CandidateKernel
    weight: CandidateWeight
    head: PackedForward
    num_to_skip: int = 0

    def __call__(self, states: Tensor) -> Tensor:
        """Compute logits [1, R, vocab_size] of states [1, R, hidden_size].

        The largest entry of each row is that of the whole product; any other is either that or
        -inf.
        """
        rows = states[0]
        if self.num_to_skip > 0 or len(rows) == 0:
            self.num_to_skip = max(self.num_to_skip - 1, 0)
            return self.head(states)
        candidates = self.kernel.find_candidates(rows, self.weight)
        if candidates.count > MAX_CANDIDATE_SHARE * self.weight.num_panels * len(rows):
            self.num_to_skip = PAUSE_STEPS
            return self.head(states)
        return self.kernel.linear(rows, self.weight.compressed, candidates)[None]


def use_greedy_head(module: nn.Module, kernels: ModelKernels) -> None:
    """Give a decoder with exact bfloat16 weights a greedy head, if that is worth it. Capped logits
    get none: logits that differ may be equal once they are capped."""
    decoder = vars(module).get("forward")
    if kernels.candidates is None or not kernels.are_exact:
        return
    if not isinstance(decoder, DecoderForward) or decoder.cap is not None:
        return
    head = vars(decoder.head).get("forward")
    if not isinstance(head, PackedForward) or head.bias is not None:
        return
    if head.weight.packed.dtype != torch.bfloat16:
        return
    if _num_weights(head.weight) < LEAST_SHARE * sum(map(_num_weights, _packed(module))):
        return
    weight = kernels.candidates.pack(head.weight)
    if weight is None:
        return
    decoder.head.register_buffer(INT8_BUFFER, weight.int8, persistent=False)
    decoder.head.register_buffer(BOUNDS_BUFFER, weight.bounds, persistent=False)
    decoder.greedy_head = GreedyHead(kernels.candidates, weight, head)
    logger.info(
        "greedy steps find the head's candidate rows by %.1f MiB of int8 weights",
        weight.int8.nbytes / MIB,
    )


def candidate_tensors(module: nn.Module) -> list[Tensor]:
    """Return the int8 copies of heads in `module`, which a greedy-only step reads as a whole."""
    found = (getattr(part, INT8_BUFFER, None) for part in module.modules())
    return [each for each in found if isinstance(each, Tensor)]


def greedy_head_scratch_bytes(module: nn.Module, num_rows: int) -> int:
    """Return the bytes that a greedy-only step of `num_rows` rows takes beside its logits."""
    decoder = vars(module).get("forward")
    greedy_head = decoder.greedy_head if isinstance(decoder, DecoderForward) else None
    if not isinstance(greedy_head, GreedyHead):
        return 0
    weight = greedy_head.weight.compressed
    return greedy_head.kernel.working_bytes((weight.num_rows, weight.num_columns), num_rows)


def _packed(module: nn.Module) -> list[PackedWeight]:
    """Return each packed weight of the module once."""
    forwards = [vars(part).get("forward") for part in module.modules()]
    found = [each.weight for each in forwards if isinstance(each, PackedForward | PackedLookup)]
    return list({id(weight.packed): weight for weight in found}.values())


def _num_weights(weight: PackedWeight) -> int:
    return weight.num_rows * weight.num_columns
