"""Chooses the kernels between a model's linear layers on a GPU; triton is imported only there."""

import torch

from quire.models.config import LinearBackend
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.plain_weight import PlainWeights
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.optimizations import Disabled, Optimization
from quire.models.triton_device import why_not_device
from quire.models.weights.weight_kernel import WeightKernel


def gpu_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """Return Triton's kernels over weights as torch keeps them, or None where they are switched off
    or cannot run, as where a GPU is only planned for."""
    if options.linear_backend is not LinearBackend.AUTO:
        return None
    if Optimization.FUSED_LAYERS in options.disabled or not torch.cuda.is_available():
        return None
    return triton_kernels(device, options.disabled) if why_not_device(device) is None else None


def triton_kernels(device: torch.device, disabled: Disabled = ()) -> ModelKernels:
    """Return the kernels. Plain weights stay where they lie: a GPU has no use for their order."""
    from quire.models.layers.triton.grouped import TritonGrouped
    from quire.models.layers.triton.triton_layers import TritonLayers

    linears: list[WeightKernel] = [PlainWeights()]
    if Optimization.GROUPED_WEIGHTS not in disabled:
        linears.insert(0, TritonGrouped(device))
    return ModelKernels(
        tuple(linears),
        TritonLayers(),
        disabled=(*disabled, Optimization.WEIGHT_RELOCATION),
    )
