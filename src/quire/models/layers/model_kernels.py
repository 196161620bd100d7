"""The kernels that a loaded model computes with."""

from typing import NamedTuple

import torch

from quire.models.layers.weight_kernel import WeightKernel
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.native.decoder.fused import FusedKernels
from quire.models.native.linear.candidates import CandidateKernel
from quire.models.optimizations import Disabled

LEAST_QUANTISED_BITS, LEAST_PACKED_BITS = 8, 12


class ModelKernels(NamedTuple):
    """The C++ kernels for one instruction set.

    linears: the first kernel that takes a weight packs it; all are exact or none is.
    fused: for what is between the linear layers; None means torch's own.
    decoder: for all layers in one call; None means that they run one by one.
    candidates: for the heads of greedy-only steps; None means that heads are computed whole.
    disabled: the optimisations that are switched off.
    """

    linears: tuple[WeightKernel, ...]
    fused: FusedKernels | None = None
    decoder: DecoderKernel | None = None
    candidates: CandidateKernel | None = None
    disabled: Disabled = ()

    @property
    def are_exact(self) -> bool:
        return all(kernel.is_exact for kernel in self.linears)

    def least_bits(self, dtype: torch.dtype) -> int:
        """Return the fewest bits that a weight may take, if the model computes in `dtype` and its
        checkpoint has another."""
        if not self.are_exact:
            return LEAST_QUANTISED_BITS
        return LEAST_PACKED_BITS if dtype == torch.bfloat16 else 8 * dtype.itemsize
