"""The kernels that a loaded model computes with."""

from typing import NamedTuple

import torch

from quire.models.config import ModelDtype
from quire.models.layers.layer_kernels import LayerKernels
from quire.models.native.decoder.decoder import DecoderKernel
from quire.models.optimizations import Disabled
from quire.models.weights.weight_kernel import WeightKernel

LEAST_PACKED_BITS = 12


class ModelKernels(NamedTuple):
    """The C++ kernels for one instruction set, or those of a GPU.

    linears: the first kernel that takes a weight packs it; all are exact or none is.
    fused: for what is between the linear layers; None means torch's own.
    decoder: for all layers in one call; None means that they run one by one.
    disabled: the optimisations that are switched off.
    heads: kernels that come before `linears` for the weights of heads and embeddings.
    dtype: the only one that they compute in; AUTO if there are several.
    least_bits_quantised: the fewest bits of a weight that kernels which are not exact take.
    """

    linears: tuple[WeightKernel, ...]
    fused: LayerKernels | None = None
    decoder: DecoderKernel | None = None
    disabled: Disabled = ()
    heads: tuple[WeightKernel, ...] = ()
    dtype: ModelDtype = ModelDtype.AUTO
    least_bits_quantised: int = 8

    @property
    def are_exact(self) -> bool:
        return all(kernel.is_exact for kernel in self.linears)

    def least_bits(self, dtype: torch.dtype) -> int:
        """Return the fewest bits that a weight may take, if the model computes in `dtype` and its
        checkpoint has another."""
        if not self.are_exact:
            return self.least_bits_quantised
        return LEAST_PACKED_BITS if dtype == torch.bfloat16 else 8 * dtype.itemsize
