"""A Chromium without a window, and pages of it that are watched: nothing is asked of another host,
nothing is written to the console, no script fails. `--screenshots` writes those of docs/page.md."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.page.watched_page import WatchedPage
from tests.e2e.server_process import ServerProcess, server_process
from tests.server.served import Served, plain_config, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-background-networking")
"""Chromium's sandbox does not work for root, as which containers run tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="write docs/page-*.png")


@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    reason = "playwright is not installed (make page-check)"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: "Browser") -> Iterator[WatchedPage]:
    watched = WatchedPage(browser)
    yield watched
    watched.close()


@pytest.fixture(scope="package")
def server(browser: "Browser") -> Iterator[ServerProcess]:
    with server_process() as running:
        yield running


@pytest.fixture(scope="module")
def scripted(browser: "Browser") -> Iterator[Served]:
    with serving(plain_config()) as running:
        yield running
