"""Chooses the kernels of a model: torch's, or C++ ones over packed or quantised weights."""

import platform
from typing import NamedTuple

import torch

from quire.models.config import LinearBackend, ModelDtype, Quantization
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.weight_kernel import WeightKernel
from quire.models.native import Library, library
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import bind_fused
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.candidates import bind_candidates
from quire.models.native.linear.compressed_bf16 import bind_compressed_bf16
from quire.models.native.linear.w8a8 import bind_w8a8
from quire.models.native.linear.w8a32 import W8A32Kernel, bind_w8a32


class KernelOptions(NamedTuple):
    """The options `--quantization`, `--linear-backend` and `--dtype`."""

    quantization: Quantization = Quantization.NONE
    linear_backend: LinearBackend = LinearBackend.AUTO
    dtype: ModelDtype = ModelDtype.AUTO


def choose_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """Return the C++ kernels, or None for torch's. Raises ValueError if they cannot quantise."""
    if options.quantization is not Quantization.NONE:
        return _int8_kernels(options, device)
    is_packed = device.type == "cpu" and options.linear_backend is LinearBackend.AUTO
    built = library() if is_packed else None
    if built is None:
        return None
    bf16_storage = bind_bf16_storage(built.handle, built.isa) if _has_vectors(built) else None
    bound = (bind_compressed_bf16(built.handle, built.isa), bf16_storage)
    return _with_fused(built, *(kernel for kernel in bound if kernel is not None))


def _has_vectors(built: Library) -> bool:
    """Whether the vectors are as wide as those of torch's products: portable x86 code's are not."""
    return built.isa != "portable" or platform.machine() not in ("x86_64", "AMD64")


def _int8_kernels(options: KernelOptions, device: torch.device) -> ModelKernels:
    if device.type != "cpu":
        raise _refusal(options, f"runs on a CPU only, not on {device}: pass --device cpu")
    if options.linear_backend is not LinearBackend.AUTO:
        raise _refusal(options, "needs the C++ kernels: leave out --linear-backend torch")
    if options.dtype is ModelDtype.FLOAT16:
        raise _refusal(
            options, "computes in bfloat16 or float32: pass another --dtype than float16"
        )
    built = library()
    if built is None:
        raise _refusal(options, "needs Quire's C++ kernels, which were not built: see the log")
    place = (built.handle, built.isa)
    kernel = bind_w8a8(*place) or bind_w8a32(*place)
    assert kernel is not None, "the portable set has it too"
    if isinstance(kernel, W8A32Kernel) and options.dtype is ModelDtype.BFLOAT16:
        raise _refusal(
            options,
            "computes in float32 where AVX-512 VNNI and BF16 are not: leave out --dtype bfloat16",
        )
    return _with_fused(built, kernel)


def compute_dtype(options: KernelOptions, kernels: ModelKernels | None) -> ModelDtype:
    """Return `--dtype`, with auto resolved for kernels that know one dtype only."""
    linears = () if kernels is None else kernels.linears
    is_float32_only = any(isinstance(kernel, W8A32Kernel) for kernel in linears)
    is_chosen = is_float32_only and options.dtype is ModelDtype.AUTO
    return ModelDtype.FLOAT32 if is_chosen else options.dtype


def _with_fused(built: Library, *linears: WeightKernel) -> ModelKernels:
    place = (built.handle, built.isa)
    return ModelKernels(linears, bind_fused(*place), bind_decoder(*place), bind_candidates(*place))


def _refusal(options: KernelOptions, why: str) -> ValueError:
    return ValueError(f"--quantization {options.quantization} {why}")
