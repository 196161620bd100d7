"""The weight format `int4`: four bits for each weight, with a step and a begin for each 32 columns
and a scale for each row, on a CPU that multiplies bytes (w4a8). Heads and embeddings are int8: in
four bits they cost more than all else."""

import torch

from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.formats import int8
from quire.models.loading.formats.weight_format import KernelOptions, WeightFormat
from quire.models.loading.native_kernels import native_kernels
from quire.models.native import Library, library
from quire.models.native.linear.quantised.w4a8 import W4A8Kernel, bind_w4a8
from quire.models.native.linear.quantised.w8a8 import bind_w8a8
from quire.models.optimizations import Optimization


def why_not(options: KernelOptions, device: torch.device) -> str | None:
    """Return why weights cannot be had in int4 there, in words, or None if they can."""
    built = library()
    if device.type == "cpu" and built is not None and _w4a8(built, options) is None:
        return (
            "multiplies bytes, for which there is no AVX-512 VNNI here, or w8a8 is off: pass int8"
        )
    return int8.why_not(options, device)


def int4_kernels(options: KernelOptions) -> ModelKernels:
    """Return the kernels of w4a8."""
    built = library()
    assert built is not None, "only where it can be had"
    w4a8 = _w4a8(built, options)
    assert w4a8 is not None, "only where it can be had"
    usable = built.without(options.disabled)
    w8a8 = bind_w8a8(usable)
    assert w8a8 is not None, "there are both or none"
    kernels = native_kernels(usable, options.disabled, w4a8)
    return kernels._replace(heads=(w8a8,), least_bits_quantised=4)


def _w4a8(built: Library, options: KernelOptions) -> W4A8Kernel | None:
    if Optimization.W8A8 in options.disabled:
        return None
    return bind_w4a8(built.without(options.disabled))


INT4 = WeightFormat(why_not=why_not, kernels=int4_kernels)
