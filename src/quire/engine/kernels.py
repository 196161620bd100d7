"""Which kernels run a model: torch's, or C++ ones over packed weights or quantised ones."""

import platform

import torch

from quire.engine.config import EngineConfig
from quire.models.model_kernels import ModelKernels
from quire.models.native import Library, library
from quire.models.native.bytes import BytesKernel, bind_bytes
from quire.models.native.decoder import bind_decoder
from quire.models.native.fused import bind_fused
from quire.models.native.halved import bind_halved
from quire.models.native.int8 import bind_int8
from quire.models.native.linear import bind_linear
from quire.models.native.screen import bind_screen
from quire.models.weight_kernel import WeightKernel


def choose_kernels(config: EngineConfig, device: torch.device) -> ModelKernels | None:
    """None: torch's. Raises ValueError where weights are to be quantised and cannot be."""
    if config.quantization != "none":
        return _int8_kernels(config, device)
    built = library() if device.type == "cpu" and config.linear_backend == "auto" else None
    if built is None:
        return None
    halved = bind_halved(built.handle, built.isa) if _has_vectors(built) else None
    bound = (bind_linear(built.handle, built.isa), halved)
    return _with_fused(built, *(kernel for kernel in bound if kernel is not None))


def _has_vectors(built: Library) -> bool:
    """As wide as those of torch's products: on x86 the portable code has not."""
    return built.isa != "portable" or platform.machine() not in ("x86_64", "AMD64")


def _int8_kernels(config: EngineConfig, device: torch.device) -> ModelKernels:
    if device.type != "cpu":
        raise _refusal(config, f"runs on a CPU only, not on {device}: pass --device cpu")
    if config.linear_backend != "auto":
        raise _refusal(config, "needs the C++ kernels: leave out --linear-backend torch")
    if config.dtype == "float16":
        raise _refusal(config, "computes in bfloat16 or float32: pass another --dtype than float16")
    built = library()
    if built is None:
        raise _refusal(config, "needs Quire's C++ kernels, which were not built: see the log")
    place = (built.handle, built.isa)
    kernel = bind_int8(*place) or bind_bytes(*place)
    assert kernel is not None, "the portable set has it too"
    if isinstance(kernel, BytesKernel) and config.dtype == "bfloat16":
        raise _refusal(
            config,
            "computes in float32 where AVX-512 VNNI and BF16 are not: leave out --dtype bfloat16",
        )
    return _with_fused(built, kernel)


def asked_dtype(config: EngineConfig, kernels: ModelKernels | None) -> str:
    """`--dtype`, where auto leaves no choice to kernels that know one dtype only."""
    linears = () if kernels is None else kernels.linears
    is_widened = any(isinstance(kernel, BytesKernel) for kernel in linears)
    return "float32" if is_widened and config.dtype == "auto" else config.dtype


def _with_fused(built: Library, *linears: WeightKernel) -> ModelKernels:
    place = (built.handle, built.isa)
    return ModelKernels(linears, bind_fused(*place), bind_decoder(*place), bind_screen(*place))


def _refusal(config: EngineConfig, why: str) -> ValueError:
    return ValueError(f"--quantization {config.quantization} {why}")
