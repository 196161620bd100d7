"""Lends every sampler: in torch, and over the C++ kernel for each instruction set."""

import pytest

from quire.engine.sampling.native_sampler import NativeSampler
from quire.engine.sampling.torch_sampler import TorchSampler
from quire.models.native.library import ISAS
from quire.models.native.sampling.sampling import SamplingKernel
from tests.engine.sampling.sampler_cases import CPU, Make
from tests.instructions import library_of
from tests.long import rest_is_long

IN_EVERY_RUN = ("torch", "avx2", "avx512")
"""Samplers of `make test`. The kernel for any CPU is built from the same file, and that for AMX as
that for AVX-512, as it has no tiles; `make long` tries them too."""


@pytest.fixture(scope="session", params=rest_is_long(IN_EVERY_RUN, ("torch", *ISAS)))
def make(request: pytest.FixtureRequest) -> Make:
    isa: str = request.param
    if isa == "torch":
        return lambda vocab_size: TorchSampler(vocab_size, CPU)
    kernels = library_of(isa)
    return lambda vocab_size: NativeSampler(SamplingKernel(kernels, vocab_size))
