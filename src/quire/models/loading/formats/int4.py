"""The weight format `int4`: four bits for each weight, on a CPU. Where bytes are multiplied, with a
step and a begin for each 32 columns and a scale for each row (w4a8); elsewhere with a scale and an
offset for each 32 columns, widened to float32. Heads and embeddings are int8: in four bits they
cost more than all else."""

from quire.models.config import ModelDtype
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.formats import int8
from quire.models.loading.formats.weight_format import KernelOptions, WeightFormat
from quire.models.loading.native_kernels import native_kernels
from quire.models.native import library
from quire.models.native.linear.quantised.grouping import bind_grouping
from quire.models.native.linear.quantised.w4a8 import bind_w4a8
from quire.models.native.linear.quantised.w8a8 import bind_w8a8
from quire.models.optimizations import Optimization


def int4_kernels(options: KernelOptions) -> ModelKernels:
    """Return the w4a8 kernels, or those over weights in groups if there are none."""
    built = library()
    assert built is not None, "only where it can be had"
    built = built.without(options.disabled)
    w4a8, w8a8 = bind_w4a8(built), bind_w8a8(built)
    if w4a8 is None or w8a8 is None or Optimization.W8A8 in options.disabled:
        kernels = native_kernels(built, options.disabled, bind_grouping(built, 4))
        heads = bind_grouping(built, 8)
        kernels = kernels._replace(heads=(heads,), dtype=ModelDtype.FLOAT32)
    else:
        kernels = native_kernels(built, options.disabled, w4a8)._replace(heads=(w8a8,))
    return kernels._replace(least_bits_quantised=4)


INT4 = WeightFormat(why_not=int8.why_not, kernels=int4_kernels)
