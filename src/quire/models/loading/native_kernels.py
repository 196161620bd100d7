"""Binds the C++ kernels that go with given linear kernels."""

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native import Library
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import bind_fused
from quire.models.optimizations import Disabled, Optimization
from quire.models.weights.weight_kernel import WeightKernel


def native_kernels(built: Library, disabled: Disabled, *linears: WeightKernel) -> ModelKernels:
    """Return `linears`, which must be C++ kernels of `built`, with all enabled kernels for the
    operations between them."""
    return ModelKernels(
        linears,
        None if Optimization.FUSED_LAYERS in disabled else bind_fused(built),
        None if Optimization.NATIVE_DECODER in disabled else bind_decoder(built),
        disabled,
    )
