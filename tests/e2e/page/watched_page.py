"""A page in a browser of its own storage, with an eye on all that it does."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

WITHIN_MS = 20_000
SIZE = (960, 620)
SERIOUS = ("serious", "critical")


class WatchedPage:
    """`tab` is the browser's; `faults` are what it did that it should not. A test that provokes an
    error of the server empties `faults` of it."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self.faults: list[str] = []
        self._hosts: set[str] = set()
        self.tab = self._open(bypass_csp=False)

    def _open(self, *, bypass_csp: bool) -> "Page":
        context = self._browser.new_context(
            bypass_csp=bypass_csp, viewport={"width": SIZE[0], "height": SIZE[1]}
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(WITHIN_MS)
        context.on("request", lambda request: self._hosts.add(urlsplit(request.url).netloc))
        tab = context.new_page()
        tab.on("console", lambda said: self.faults.append(f"console: {said.text}"))
        tab.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        tab.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        return tab

    def visit(self, url: str, *, bypass_csp: bool = False) -> None:
        """Open the page; `bypass_csp` lets the test bring scripts of its own."""
        if bypass_csp:
            self.tab.context.close()
            self.tab = self._open(bypass_csp=True)
        self.tab.goto(url)
        self.tab.get_by_role("tab", name="Chat").wait_for()

    def send(self, text: str) -> "Locator":
        """Send a message; return the place of the answer, once it has ended."""
        self.tab.get_by_label("Message").fill(text)
        self.tab.get_by_role("button", name="Send").click()
        self.tab.get_by_role("status").filter(has_text="The answer").wait_for()
        answers = self.tab.locator(".turn.assistant")
        return answers.nth(answers.count() - 1)

    def open(self, tab: str) -> None:
        self.tab.get_by_role("tab", name=tab).click()

    def serious_faults_in_both_colours(self) -> list[str]:
        """The faults in the light colours, and those of contrast in the dark ones."""
        colours = self.tab.get_by_label("Colours")
        found = self.serious_faults()
        colours.select_option("dark")
        found += self.serious_faults("{runOnly: ['color-contrast']}")
        colours.select_option("light")
        return found

    def serious_faults(self, options: str = "{}") -> list[str]:
        """Return the faults that axe-core finds on the page now, of the impacts that count."""
        axe = pytest.importorskip(
            "axe_playwright_python", reason="axe-core is not installed (make page-check)"
        )
        self.tab.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        found = self.tab.evaluate(f"axe.run(document, {options})")
        assert found["passes"], "axe-core looked at nothing"
        return [
            f"{each['id']}: {each['nodes'][0]['html']}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]

    def close(self) -> None:
        """End the browser's context. Raises AssertionError for what the page should not do."""
        url, context = self.tab.url, self.tab.context
        context.close()
        assert self.faults == []
        assert self._hosts <= {urlsplit(url).netloc}
