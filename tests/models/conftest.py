"""Lends the kernels."""

import pytest

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native import Library
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import FusedKernels, bind_fused
from quire.models.native.linear.halved import bind_halved
from quire.models.native.linear.linear import LinearKernel, bind_linear
from quire.models.native.linear.screen import bind_screen
from tests.instructions import library_with_products


def bind_kernels(built: Library) -> ModelKernels:
    """By an instruction set that multiplies bfloat16 numbers."""
    place = (built.handle, built.isa)
    linear, halved = bind_linear(*place), bind_halved(*place)
    assert linear is not None and halved is not None
    fused = (bind_fused(*place), bind_decoder(*place), bind_screen(*place))
    return ModelKernels((linear, halved), *fused)


@pytest.fixture(scope="session")
def kernels() -> ModelKernels:
    return bind_kernels(library_with_products())


@pytest.fixture(scope="session")
def kernel(kernels: ModelKernels) -> LinearKernel:
    linear = kernels.linears[0]
    assert isinstance(linear, LinearKernel)
    return linear


@pytest.fixture(scope="session")
def fused(kernels: ModelKernels) -> FusedKernels:
    assert kernels.fused is not None
    return kernels.fused
