"""The weight format `int8`: a byte for each weight with a scale for each row, on a CPU. Bytes are
multiplied where there is an instruction for it (w8a8), else widened to float32 (w8a32).
"""

import torch

from quire.models.config import LinearBackend, ModelDtype
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.formats.weight_format import KernelOptions, WeightFormat
from quire.models.loading.native_kernels import native_kernels
from quire.models.native import Library, library
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel, bind_w8a8
from quire.models.native.linear.quantised.w8a32 import bind_w8a32
from quire.models.optimizations import Optimization


def why_not(options: KernelOptions, device: torch.device) -> str | None:
    """Return why weights cannot be had in int8 there, in words, or None if they can."""
    if device.type != "cpu":
        return f"runs on a CPU only, not on {device}: pass --device cpu"
    if options.linear_backend is not LinearBackend.AUTO:
        return "needs the C++ kernels: leave out --linear-backend torch"
    if options.dtype is ModelDtype.FLOAT16:
        return "computes in bfloat16 or float32: pass another --dtype than float16"
    built = library()
    if built is None:
        return "needs Quire's C++ kernels, which were not built: see the log"
    if _w8a8(built, options) is None and options.dtype is ModelDtype.BFLOAT16:
        return "computes in float32 where AVX-512 VNNI and BF16 are not: leave out --dtype bfloat16"
    return None


def int8_kernels(options: KernelOptions) -> ModelKernels:
    """Return the w8a8 kernels, or the w8a32 kernels if there are none."""
    built = library()
    assert built is not None, "only where it can be had"
    w8a8 = _w8a8(built, options)
    built = built.without(options.disabled)
    if w8a8 is not None:
        return native_kernels(built, options.disabled, w8a8)
    kernels = native_kernels(built, options.disabled, bind_w8a32(built))
    kernels = kernels._replace(dtype=ModelDtype.FLOAT32)
    # Where there is a product of int8, the decoder knows no other form of quantised weights.
    return kernels if bind_w8a8(built) is None else kernels._replace(decoder=None)


def _w8a8(built: Library, options: KernelOptions) -> W8A8Kernel | None:
    if Optimization.W8A8 in options.disabled:
        return None
    return bind_w8a8(built.without(options.disabled))


INT8 = WeightFormat(why_not=why_not, kernels=int8_kernels)
