"""Shows what the fidelity tests found, as one table at the end; lends the kernels."""

import pytest

from quire.models.native import library
from quire.models.native.fused import FusedKernels
from quire.models.native.linear import LinearKernel
from quire.models.native.model_kernels import ModelKernels, bind_kernels
from tests.models.fidelity_table import ROWS, lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(ROWS, {})
    if rows:
        terminalreporter.write_sep("-", "fidelity to transformers")
        for line in lines(rows.values()):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kernels() -> ModelKernels:
    built = library()
    found = None if built is None else bind_kernels(built)
    if found is None:
        pytest.skip("needs the C++ kernels and a CPU with a bfloat16 dot product")
    return found


@pytest.fixture(scope="session")
def kernel(kernels: ModelKernels) -> LinearKernel:
    return kernels.linear


@pytest.fixture(scope="session")
def fused(kernels: ModelKernels) -> FusedKernels:
    assert kernels.fused is not None
    return kernels.fused
