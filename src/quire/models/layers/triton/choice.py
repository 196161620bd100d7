"""Chooses the kernels between a model's linear layers on a GPU; triton is imported only there."""

import torch

from quire.models.attention.triton.support import why_not_device
from quire.models.config import LinearBackend
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.plain_weight import PlainWeights
from quire.models.loading.formats.weight_format import KernelOptions
from quire.models.optimizations import Disabled, Optimization


def gpu_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """Return Triton's kernels over weights as torch keeps them, or None where they are switched off
    or cannot run, as where a GPU is only planned for."""
    if options.linear_backend is not LinearBackend.AUTO:
        return None
    if Optimization.FUSED_LAYERS in options.disabled or not torch.cuda.is_available():
        return None
    return triton_kernels(options.disabled) if why_not_device(device) is None else None


def triton_kernels(disabled: Disabled = ()) -> ModelKernels:
    """Return the kernels. Weights stay where they lie: a GPU has no use for their order."""
    from quire.models.layers.triton.triton_layers import TritonLayers

    return ModelKernels(
        (PlainWeights(),),
        TritonLayers(),
        disabled=(*disabled, Optimization.WEIGHT_RELOCATION),
    )
