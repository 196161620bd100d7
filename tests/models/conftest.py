"""Shows what the fidelity tests found, as one table at the end; lends the linear kernel."""

import pytest

from quire.models.native import library
from quire.models.native.linear import LinearKernel, bind_linear
from tests.models.fidelity_table import ROWS, lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(ROWS, {})
    if rows:
        terminalreporter.write_sep("-", "fidelity to transformers")
        for line in lines(rows.values()):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kernel() -> LinearKernel:
    built = library()
    found = None if built is None else bind_linear(built.handle, built.isa)
    if found is None:
        pytest.skip("needs the C++ kernels and a CPU with a bfloat16 dot product")
    return found
