"""Runs a test on several numbers of threads, and by each instruction set with what it needs."""

from collections.abc import Iterator

import pytest
import torch

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.decoder.fused import FusedKernels
from quire.models.native.linear.compressed_bf16 import CompressedBf16Kernel
from quire.models.native.linear.w8a8 import W8A8Kernel, bind_w8a8
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.conftest import bind_kernels


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def kernels(request: pytest.FixtureRequest) -> ModelKernels:
    return bind_kernels(library_of(request.param))


# pytest keeps what was made of the `kernels` of a folder above: what follows is made anew here.
@pytest.fixture(scope="session")
def kernel(kernels: ModelKernels) -> CompressedBf16Kernel:
    linear = kernels.linears[0]
    assert isinstance(linear, CompressedBf16Kernel)
    return linear


@pytest.fixture(scope="session")
def fused(kernels: ModelKernels) -> FusedKernels:
    assert isinstance(kernels.fused, FusedKernels)
    return kernels.fused


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def w8a8_kernel(request: pytest.FixtureRequest) -> W8A8Kernel:
    bound = bind_w8a8(library_of(request.param))
    assert bound is not None
    return bound


@pytest.fixture(params=(1, 2, 5))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
