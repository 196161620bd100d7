"""Shows what the fidelity tests found, as one table at the end."""

import pytest

from tests.models.fidelity_table import ROWS, lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = terminalreporter.config.stash.get(ROWS, {})
    if rows:
        terminalreporter.write_sep("-", "fidelity to transformers")
        for line in lines(rows.values()):
            terminalreporter.write_line(line)
