"""Runs a test by each instruction set with what it needs."""

import pytest

from quire.models.layers.model_kernels import ModelKernels
from tests.instructions import ISAS_WITH_PRODUCTS, library_of
from tests.models.conftest import bind_kernels


@pytest.fixture(scope="session", params=ISAS_WITH_PRODUCTS)
def isa(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def kernels(isa: str) -> ModelKernels:
    return bind_kernels(library_of(isa))
