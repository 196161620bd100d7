"""Lends the kernels."""

import pytest

from quire.models.model_kernels import ModelKernels
from quire.models.native import library
from quire.models.native.decoder import bind_decoder
from quire.models.native.fused import FusedKernels, bind_fused
from quire.models.native.halved import bind_halved
from quire.models.native.linear import LinearKernel, bind_linear
from quire.models.native.screen import bind_screen


def bind_kernels(isa: str | None = None) -> ModelKernels | None:
    """By the instruction set that is used here, or another. None: it lacks some of them."""
    built = library()
    if built is None:
        return None
    place = (built.handle, isa or built.isa)
    linear, halved = bind_linear(*place), bind_halved(*place)
    if linear is None or halved is None:
        return None
    fused = (bind_fused(*place), bind_decoder(*place), bind_screen(*place))
    return ModelKernels((linear, halved), *fused)


@pytest.fixture(scope="session")
def kernels() -> ModelKernels:
    bound = bind_kernels()
    if bound is None:
        pytest.skip("needs the C++ kernels and a CPU with a bfloat16 dot product")
    return bound


@pytest.fixture(scope="session")
def kernel(kernels: ModelKernels) -> LinearKernel:
    linear = kernels.linears[0]
    assert isinstance(linear, LinearKernel)
    return linear


@pytest.fixture(scope="session")
def fused(kernels: ModelKernels) -> FusedKernels:
    assert kernels.fused is not None
    return kernels.fused
