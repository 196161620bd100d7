"""Lends the kernels."""

import pytest

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native import Library
from quire.models.native.decoder.decoder import bind_decoder
from quire.models.native.decoder.fused import FusedKernels, bind_fused
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel, bind_compressed_bf16
from tests.instructions import library_with_products


def bind_kernels(built: Library) -> ModelKernels:
    """By an instruction set that multiplies bfloat16 numbers."""
    linear = bind_compressed_bf16(built)
    assert linear is not None
    linears = (linear, bind_bf16_storage(built))
    return ModelKernels(linears, bind_fused(built), bind_decoder(built))


@pytest.fixture(scope="session")
def kernels() -> ModelKernels:
    return bind_kernels(library_with_products())


@pytest.fixture(scope="module")  # a folder below has other `kernels`
def kernel(kernels: ModelKernels) -> CompressedBf16Kernel:
    linear = kernels.linears[0]
    assert isinstance(linear, CompressedBf16Kernel)
    return linear


@pytest.fixture(scope="module")
def fused(kernels: ModelKernels) -> FusedKernels:
    assert isinstance(kernels.fused, FusedKernels)
    return kernels.fused
