"""The head of greedy-only steps that a model will have, told without its weights."""

from dataclasses import dataclass

import torch
from torch import nn

from quire.models.layers.decoder_parts import has_decoder_parts, logit_cap
from quire.models.layers.greedy_head import LEAST_SHARE
from quire.models.layers.linears import packable
from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.candidates import CandidateKernel


@dataclass(frozen=True, slots=True)
class PlannedHead:
    """A greedy head of a weight [`num_rows`, `num_columns`]."""

    kernel: CandidateKernel
    num_rows: int
    num_columns: int

    @property
    def copy_bytes(self) -> int:
        """The bytes of its int8 copy, which count as weights."""
        return self.kernel.copy_bytes(self.num_rows, self.num_columns)

    def scratch_bytes(self, num_rows: int) -> int:
        """Return what a step of so many logits rows allocates beside them."""
        return self.kernel.working_bytes((self.num_rows, self.num_columns), num_rows)


def plan_greedy_head(module: nn.Module, kernels: ModelKernels | None) -> PlannedHead | None:
    """Return the greedy head that a module on the meta device would have, or None. One is given to
    a decoder that computes as its parts do, which is taken of one that has the same parts."""
    if kernels is None or kernels.candidates is None or not kernels.are_exact:
        return None
    if not has_decoder_parts(module) or logit_cap(module) is not None:
        return None
    head = module.get_submodule("lm_head")
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return None
    weights = [owners[0].get_parameter("weight") for owners in packable(module)]
    is_packed = any(weight is head.weight for weight in weights)
    least = LEAST_SHARE * sum(weight.numel() for weight in weights)
    if not is_packed or head.weight.dtype != torch.bfloat16 or head.weight.numel() < least:
        return None
    return PlannedHead(kernels.candidates, *head.weight.shape)
