"""Which kernels run a model: torch's, or C++ ones over packed weights or quantised ones."""

import platform
from typing import NamedTuple

import torch

from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.weight_kernel import WeightKernel
from quire.models.native import Library, library
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import bind_fused
from quire.models.native.linear.bytes import BytesKernel, bind_bytes
from quire.models.native.linear.halved import bind_halved
from quire.models.native.linear.int8 import bind_int8
from quire.models.native.linear.linear import bind_linear
from quire.models.native.linear.screen import bind_screen


class KernelOptions(NamedTuple):
    """What the flags of these names say: `--quantization`, `--linear-backend` and `--dtype`."""

    quantization: str = "none"
    linear_backend: str = "auto"
    dtype: str = "auto"


def choose_kernels(options: KernelOptions, device: torch.device) -> ModelKernels | None:
    """None: torch's. Raises ValueError where weights are to be quantised and cannot be."""
    if options.quantization != "none":
        return _int8_kernels(options, device)
    built = library() if device.type == "cpu" and options.linear_backend == "auto" else None
    if built is None:
        return None
    halved = bind_halved(built.handle, built.isa) if _has_vectors(built) else None
    bound = (bind_linear(built.handle, built.isa), halved)
    return _with_fused(built, *(kernel for kernel in bound if kernel is not None))


def _has_vectors(built: Library) -> bool:
    """As wide as those of torch's products: on x86 the portable code has not."""
    return built.isa != "portable" or platform.machine() not in ("x86_64", "AMD64")


def _int8_kernels(options: KernelOptions, device: torch.device) -> ModelKernels:
    if device.type != "cpu":
        raise _refusal(options, f"runs on a CPU only, not on {device}: pass --device cpu")
    if options.linear_backend != "auto":
        raise _refusal(options, "needs the C++ kernels: leave out --linear-backend torch")
    if options.dtype == "float16":
        raise _refusal(
            options, "computes in bfloat16 or float32: pass another --dtype than float16"
        )
    built = library()
    if built is None:
        raise _refusal(options, "needs Quire's C++ kernels, which were not built: see the log")
    place = (built.handle, built.isa)
    kernel = bind_int8(*place) or bind_bytes(*place)
    assert kernel is not None, "the portable set has it too"
    if isinstance(kernel, BytesKernel) and options.dtype == "bfloat16":
        raise _refusal(
            options,
            "computes in float32 where AVX-512 VNNI and BF16 are not: leave out --dtype bfloat16",
        )
    return _with_fused(built, kernel)


def asked_dtype(options: KernelOptions, kernels: ModelKernels | None) -> str:
    """`--dtype`, where auto leaves no choice to kernels that know one dtype only."""
    linears = () if kernels is None else kernels.linears
    is_widened = any(isinstance(kernel, BytesKernel) for kernel in linears)
    return "float32" if is_widened and options.dtype == "auto" else options.dtype


def _with_fused(built: Library, *linears: WeightKernel) -> ModelKernels:
    place = (built.handle, built.isa)
    return ModelKernels(linears, bind_fused(*place), bind_decoder(*place), bind_screen(*place))


def _refusal(options: KernelOptions, why: str) -> ValueError:
    return ValueError(f"--quantization {options.quantization} {why}")
