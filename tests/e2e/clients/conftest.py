"""`--record` puts what came of every client into docs/clients.md."""

from collections.abc import Generator

import pytest

from tests.e2e.clients.clients import PASSED, record
from tests.skips import reason_of

RESULTS = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write docs/clients.md")


def pytest_configure(config: pytest.Config) -> None:
    results: dict[str, str] = {}
    config.stash[RESULTS] = results


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    script = item.callspec.params.get("script") if hasattr(item, "callspec") else None
    if script is None:
        return report
    if report.skipped:
        item.config.stash[RESULTS][script] = f"skipped: {reason_of(report)}"
    elif report.failed:
        item.config.stash[RESULTS][script] = "**failed**"
    elif report.when == "call":
        item.config.stash[RESULTS][script] = PASSED
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.getoption("--record", default=False):
        return
    results = session.config.stash[RESULTS]
    try:
        record(results)
    except ValueError as error:
        print(f"\n{error}")
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
