"""Runs a test on several numbers of threads, and by each instruction set with what it needs."""

from collections.abc import Iterator

import pytest
import torch

from quire.models.model_kernels import ModelKernels
from quire.models.native import library
from quire.models.native.int8 import Int8Kernel, bind_int8
from tests.models.conftest import bind_kernels

built = library()
ISAS_WITH_PRODUCTS = (
    [] if built is None else [isa for isa in built.isas if isa in ("avx512", "amx")]
)
"""Of bfloat16 numbers and of bytes."""


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def kernels(request: pytest.FixtureRequest) -> ModelKernels:
    bound = bind_kernels(request.param)
    assert bound is not None
    return bound


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def int8_kernel(request: pytest.FixtureRequest) -> Int8Kernel:
    assert built is not None
    bound = bind_int8(built.handle, request.param)
    assert bound is not None
    return bound


@pytest.fixture(params=(1, 2, 5))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
