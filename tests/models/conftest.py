"""Shows what the fidelity tests found, as one table at the end; lends the linear kernel."""

import pytest
from tools.build_linear import build_linear, can_build

from quire.models.native.linear import LinearKernel
from tests.models.fidelity_table import ROWS, lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(ROWS, {})
    if rows:
        terminalreporter.write_sep("-", "fidelity to transformers")
        for line in lines(rows.values()):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> LinearKernel:
    if not can_build():
        pytest.skip("needs g++ and a CPU with a bfloat16 dot product")
    return build_linear(tmp_path_factory.mktemp("linear"))
