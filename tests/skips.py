"""One line at the end of a run: how many tests were skipped, and why."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("skipped")
    if reports:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(summary([reason_of(report) for report in reports]))


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What was given to `pytest.skip`."""
    found = report.longrepr
    words = found[2] if isinstance(found, tuple) else str(found)
    return words.removeprefix("Skipped: ")


def summary(reasons: list[str]) -> str:
    """As in "5 skipped: this CPU lacks AMX (4), triton is not installed (1)"."""
    counts = Counter(reasons).most_common()
    said = ", ".join(f"{reason} ({count})" for reason, count in counts)
    return f"{len(reasons)} skipped: {said}"
