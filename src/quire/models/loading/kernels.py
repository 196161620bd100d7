"""Chooses the kernels of a model: torch's, or others over packed or quantised weights."""

import platform
from pkgutil import resolve_name

import torch

from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.triton.choice import gpu_kernels
from quire.models.loading.formats.weight_format import KernelOptions, WeightFormat
from quire.models.loading.native_kernels import native_kernels
from quire.models.native import Library, library
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import bind_compressed_bf16
from quire.models.native.linear.quantised.grouped import bind_grouped
from quire.models.optimizations import Optimization
from quire.models.weights.weight_kernel import WeightKernel


def choose_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """Return the kernels of the weight format, else the C++ ones over exact weights, on a GPU those
    of Triton, or None for torch's. Raises ValueError if the format cannot be had."""
    if options.quantization is not Quantization.NONE:
        return _quantised_kernels(options, device)
    if device.type == "cuda":
        return gpu_kernels(options, device)
    is_packed = device.type == "cpu" and options.linear_backend is LinearBackend.AUTO
    built = library() if is_packed else None
    if built is None:
        return None
    built = built.without(options.disabled)
    linears: list[WeightKernel | None] = []
    if Optimization.GROUPED_WEIGHTS not in options.disabled and _has_vectors(built):
        linears.append(bind_grouped(built))
    if Optimization.COMPRESSED_BF16 not in options.disabled:
        linears.append(bind_compressed_bf16(built))
    if Optimization.BF16_STORAGE not in options.disabled and _has_vectors(built):
        linears.append(bind_bf16_storage(built))
    bound = [kernel for kernel in linears if kernel is not None]
    return native_kernels(built, options.disabled, *bound)


def compute_dtype(options: KernelOptions, kernels: ModelKernels | None) -> ModelDtype:
    """Return `--dtype`, with auto resolved for kernels that know one dtype only."""
    if kernels is None or options.dtype is not ModelDtype.AUTO:
        return options.dtype
    return kernels.dtype


def _has_vectors(built: Library) -> bool:
    """Return whether the vectors are as wide as those of torch's products: portable x86 code's are
    not."""
    return built.isa != "portable" or platform.machine() not in ("x86_64", "AMD64")


def _quantised_kernels(options: KernelOptions, device: torch.device) -> ModelKernels:
    name = options.quantization
    found: object = resolve_name(name.implementation)
    assert isinstance(found, WeightFormat), f"{name.implementation} is no weight format"
    why = found.why_not(options, device)
    if why is not None:
        raise ValueError(f"--quantization {name} {why}")
    return found.kernels(options)
