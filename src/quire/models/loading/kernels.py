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
from quire.models.optimizations import Disabled, Optimization


class KernelOptions(NamedTuple):
    """The options `--quantization`, `--linear-backend`, `--dtype` and `--disable-optimizations`."""

    quantization: Quantization = Quantization.NONE
    linear_backend: LinearBackend = LinearBackend.AUTO
    dtype: ModelDtype = ModelDtype.AUTO
    disabled: Disabled = ()


def choose_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """Return the C++ kernels, or None for torch's. Raises ValueError if they cannot quantise."""
    if options.quantization is not Quantization.NONE:
        return _int8_kernels(options, device)
    is_packed = device.type == "cpu" and options.linear_backend is LinearBackend.AUTO
    built = library() if is_packed else None
    if built is None:
        return None
    built = built.without(options.disabled)
    place = (built.handle, built.isa)
    linears: list[WeightKernel | None] = []
    if Optimization.COMPRESSED_BF16 not in options.disabled:
        linears.append(bind_compressed_bf16(*place))
    if Optimization.BF16_STORAGE not in options.disabled and _has_vectors(built):
        linears.append(bind_bf16_storage(*place))
    return _with_fused(
        built, options.disabled, *(kernel for kernel in linears if kernel is not None)
    )


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
    built = built.without(options.disabled)
    place = (built.handle, built.isa)
    w8a8 = bind_w8a8(*place)
    is_w8a8 = w8a8 is not None and Optimization.W8A8 not in options.disabled
    kernel = w8a8 if is_w8a8 else bind_w8a32(*place)
    assert kernel is not None, "the portable set has it too"
    if isinstance(kernel, W8A32Kernel) and options.dtype is ModelDtype.BFLOAT16:
        raise _refusal(
            options,
            "computes in float32 where AVX-512 VNNI and BF16 are not: leave out --dtype bfloat16",
        )
    kernels = _with_fused(built, options.disabled, kernel)
    # Where there is a product of int8, the decoder knows no other form of quantised weights.
    return kernels if is_w8a8 or w8a8 is None else kernels._replace(decoder=None)


def compute_dtype(options: KernelOptions, kernels: ModelKernels | None) -> ModelDtype:
    """Return `--dtype`, with auto resolved for kernels that know one dtype only."""
    linears = () if kernels is None else kernels.linears
    is_float32_only = any(isinstance(kernel, W8A32Kernel) for kernel in linears)
    is_chosen = is_float32_only and options.dtype is ModelDtype.AUTO
    return ModelDtype.FLOAT32 if is_chosen else options.dtype


def _with_fused(built: Library, disabled: Disabled, *linears: WeightKernel) -> ModelKernels:
    place = (built.handle, built.isa)
    return ModelKernels(
        linears,
        None if Optimization.FUSED_LAYERS in disabled else bind_fused(*place),
        None if Optimization.NATIVE_DECODER in disabled else bind_decoder(*place),
        None if Optimization.CANDIDATE_PRUNING in disabled else bind_candidates(*place),
        disabled,
    )


def _refusal(options: KernelOptions, why: str) -> ValueError:
    return ValueError(f"--quantization {options.quantization} {why}")
