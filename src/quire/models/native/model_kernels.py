"""The kernels that go under a loaded model."""

from typing import NamedTuple

from quire.models.native.fused import FusedKernels, bind_fused
from quire.models.native.library import Library
from quire.models.native.linear import LinearKernel, bind_linear


class ModelKernels(NamedTuple):
    """`fused`: None leaves what is between the linear layers to torch."""

    linear: LinearKernel
    fused: FusedKernels | None


def bind_kernels(library: Library) -> ModelKernels | None:
    """None: the library's instruction set has no bfloat16 dot product."""
    linear = bind_linear(library.handle, library.isa)
    if linear is None:
        return None
    return ModelKernels(linear, bind_fused(library.handle, library.isa))
