"""The kernels that go under a loaded model."""

from typing import NamedTuple

import torch

from quire.models.layers.weight_kernel import WeightKernel
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.native.decoder.fused import FusedKernels
from quire.models.native.linear.screen import ScreenKernel

LEAST_QUANTISED_BITS, LEAST_PACKED_BITS = 8, 12


class ModelKernels(NamedTuple):
    """`linears`: a weight has the first that takes it; all are exact or none is. `fused`: for what
    is between the linear layers; None: torch's. `decoder`: for all layers at once; None: they run
    one by one. `screen`: for heads of which only the largest logits are wanted; None: they are
    computed whole."""

    linears: tuple[WeightKernel, ...]
    fused: FusedKernels | None = None
    decoder: DecoderKernel | None = None
    screen: ScreenKernel | None = None

    @property
    def are_exact(self) -> bool:
        return all(kernel.is_exact for kernel in self.linears)

    def least_bits(self, dtype: torch.dtype) -> int:
        """The fewest bits that they keep a weight in, where the model computes in `dtype` and its
        checkpoint is in another."""
        if not self.are_exact:
            return LEAST_QUANTISED_BITS
        return LEAST_PACKED_BITS if dtype == torch.bfloat16 else 8 * dtype.itemsize
