"""Runs a test on several numbers of threads, and by each instruction set with what it needs."""

from collections.abc import Iterator

import pytest
import torch

from quire.models.layers.model_kernels import ModelKernels
from quire.models.native.linear.quantised.w4a8 import bind_w4a8
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel, bind_w8a8
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.conftest import bind_kernels


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def kernels(request: pytest.FixtureRequest) -> ModelKernels:
    return bind_kernels(library_of(request.param))


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def w8a8_kernel(request: pytest.FixtureRequest) -> W8A8Kernel:
    bound = bind_w8a8(library_of(request.param))
    assert bound is not None
    return bound


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def isa(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session", params=[bind_w8a8, bind_w4a8], ids=["w8a8", "w4a8"])
def byte_kernel(request: pytest.FixtureRequest, isa: str) -> W8A8Kernel:
    bound: W8A8Kernel | None = request.param(library_of(isa))
    assert bound is not None
    return bound


@pytest.fixture(params=(1, 2, 5))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
