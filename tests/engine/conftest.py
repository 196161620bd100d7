"""Lends every sampler: in torch, and over the C++ kernel for each instruction set."""

import pytest

from quire.engine.native_sampler import NativeSampler
from quire.engine.torch_sampler import TorchSampler
from quire.models.native import library
from quire.models.native.library import ISAS
from quire.models.native.sampling import SamplingKernel
from tests.engine.sampler_cases import CPU, Make


@pytest.fixture(scope="session", params=("torch", *ISAS))
def make(request: pytest.FixtureRequest) -> Make:
    isa: str = request.param
    if isa == "torch":
        return lambda vocab_size: TorchSampler(vocab_size, CPU)
    kernels = library()
    if kernels is None or isa not in kernels.isas:
        pytest.skip(f"no C++ kernels for {isa} here")
    return lambda vocab_size: NativeSampler(SamplingKernel(kernels.of(isa), vocab_size))
