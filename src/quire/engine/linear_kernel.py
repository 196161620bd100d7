"""Which kernel runs the linear layers: torch's, the C++ one over packed weights, or that over
quantised ones."""

import torch

from quire.engine.config import EngineConfig
from quire.models.native import library
from quire.models.native.int8 import bind_int8
from quire.models.native.linear import bind_linear
from quire.models.weight_kernel import WeightKernel


def choose_linear_kernel(config: EngineConfig, device: torch.device) -> WeightKernel | None:
    """None: torch's. Raises ValueError where weights are to be quantised and cannot be."""
    if config.quantization != "none":
        return _int8_kernel(config, device)
    kernels = library() if device.type == "cpu" and config.linear_backend == "auto" else None
    return None if kernels is None else bind_linear(kernels.handle, kernels.isa)


def _int8_kernel(config: EngineConfig, device: torch.device) -> WeightKernel:
    if device.type != "cpu":
        raise _refusal(config, f"runs on a CPU only, not on {device}: pass --device cpu")
    if config.linear_backend != "auto":
        raise _refusal(config, "needs the C++ kernels: leave out --linear-backend torch")
    if config.dtype == "float16":
        raise _refusal(config, "computes in bfloat16 or float32: pass another --dtype than float16")
    kernels = library()
    kernel = None if kernels is None else bind_int8(kernels.handle, kernels.isa)
    if kernel is None:
        raise _refusal(
            config,
            "needs Quire's C++ kernels and a CPU with AVX-512 VNNI and BF16, such as AMD Zen 4 or "
            "Intel Sapphire Rapids; here leave it out",
        )
    return kernel


def _refusal(config: EngineConfig, why: str) -> ValueError:
    return ValueError(f"--quantization {config.quantization} {why}")
