"""The page in a real browser with a real server: chats, what they keep to, timelines and memory."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.e2e.page.watched_page import WatchedPage
from tests.e2e.server_process import MODEL, ServerProcess

DOCS = Path(__file__).parents[3] / "docs"
MAX_SCREENSHOT_BYTES = 200_000
SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
}
TOOL = {"name": "find", "parameters": {"type": "object", "properties": {"number": {"enum": [4]}}}}
TOOL["parameters"] |= {"required": ["number"], "additionalProperties": False}  # type: ignore[operator]


def test_a_chat_streams_and_remembers(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    assert page.tab.get_by_label("Model").input_value() == MODEL
    page.tab.get_by_label("System prompt").fill("Thou art a king.")
    page.tab.get_by_label("Seed").fill("3")
    page.tab.get_by_label("Most tokens").fill("24")
    first = page.send("Who art thou?")
    assert first.locator(".said").inner_text() != ""
    figures = first.locator(".figures").inner_text()
    for wanted in (r"first token after [\d.]+ m?s", r"[\d.]+ tokens a second", r"\d+ output token"):
        assert re.search(wanted, figures)
    with page.tab.expect_request("**/v1/chat/completions") as asked:
        second = page.send("And what is thy will?")
    body = json.loads(asked.value.post_data or "")
    roles = [each["role"] for each in body["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"] == first.locator(".said").text_content()
    assert second.locator(".figures").inner_text() != figures


def test_a_completion_is_of_the_prompt_alone(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("Completion", exact=True).check()
    page.tab.get_by_label("Most tokens").fill("5")
    page.tab.get_by_label("Prompt", exact=True).fill("ROMEO:\n")
    page.tab.keyboard.press("Control+End")
    page.tab.keyboard.press("Enter")
    page.tab.get_by_role("status").filter(has_text="5 output tokens").wait_for()
    assert page.tab.locator(".turn").count() == 2
    assert page.tab.get_by_label("System prompt").is_hidden()


def test_a_schema_is_kept(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("JSON schema").fill(json.dumps(SCHEMA))
    answer = page.send("Who art thou?")
    jsonschema.validate(json.loads(answer.locator(".said").inner_text()), SCHEMA)


def test_what_is_no_schema_is_not_sent(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("JSON schema").fill("{type: object}")
    page.tab.get_by_label("Message").fill("Who?")
    page.tab.get_by_role("button", name="Send").click()
    message = page.tab.get_by_label("JSON schema").evaluate("(field) => field.validationMessage")
    assert message.startswith("This is not JSON")
    assert page.tab.locator(".turn").count() == 0
    assert page.tab.get_by_label("Message").input_value() == "Who?"


def test_a_tool_is_called_and_its_result_is_sent(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("Tools").fill(json.dumps([{"type": "function", "function": TOOL}]))
    page.tab.get_by_label("Tool choice").select_option("required")
    page.tab.get_by_label("Several calls").uncheck()
    answer = page.send("Find four.")
    called = answer.get_by_role("region", name="Tool call").inner_text()
    found = re.fullmatch(r"find\((.*)\)", called, re.DOTALL)
    assert found is not None, called
    assert json.loads(found[1]) == {"number": 4}
    answer.get_by_label("Result of this call").fill("It is four.")
    page.tab.get_by_label("Tool choice").select_option("none")
    with page.tab.expect_request("**/v1/chat/completions") as asked:
        page.send("")
    messages = json.loads(asked.value.post_data or "")["messages"]
    assert messages[-1]["role"] == "tool" and messages[-1]["content"] == "It is four."
    assert messages[-1]["tool_call_id"] == messages[1]["tool_calls"][-1]["id"]


def test_tokens_are_coloured_on_demand(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("Log probabilities").check()
    page.tab.get_by_label("Most tokens").fill("8")
    answer = page.send("Who art thou?")
    coloured = answer.locator(".output > .token")
    assert not coloured.first.is_visible()
    answer.get_by_label("Colour tokens").check()
    assert 1 <= coloured.count() <= 8
    assert coloured.first.is_visible()
    answer.get_by_text("Tokens as a table").click()
    rows = answer.get_by_role("row")
    rows.nth(1).wait_for()
    assert rows.count() == coloured.count() + 1


@pytest.mark.parametrize("mode", ["Chat", "Completion"])
def test_the_code_does_what_the_page_did(
    page: WatchedPage, server: ServerProcess, mode: str
) -> None:
    page.visit(server.url)
    page.tab.get_by_role("radio", name=mode).check()
    for label, value in (("Seed", "5"), ("Top k", "3"), ("Most tokens", "12")):
        page.tab.get_by_label(label).fill(value)
    page.tab.get_by_label("Stop strings").fill("it's 'quoted'\nénd")
    page.tab.get_by_label("Message" if mode == "Chat" else "Prompt", exact=True).fill(
        'What\'s "news", lord?'
    )
    page.tab.get_by_text("This request as code").click()
    ran = []
    for language, command in (("curl", ["bash", "-c"]), ("python", [sys.executable, "-c"])):
        page.tab.get_by_label("Language").select_option(language)
        page.tab.get_by_role("button", name="Copy").click()
        page.tab.get_by_text("Copied.").wait_for()
        code = page.tab.evaluate("navigator.clipboard.readText()")
        done = subprocess.run([*command, code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        ran.append(done.stdout)
    page.tab.get_by_role("button", name="Send").click()
    page.tab.get_by_role("status").filter(has_text="The answer").wait_for()
    said = page.tab.locator(".turn.assistant .said").text_content()
    assert said and ran[1] == said
    events = [line.removeprefix("data: ") for line in ran[0].splitlines() if "{" in line]
    choices = [each for event in events for each in json.loads(event)["choices"]]
    assert "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices) == said


def test_the_timeline_of_an_answer_opens(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url)
    page.tab.get_by_label("Most tokens").fill("6")
    answer = page.send("A riddle, a riddle!")
    answer.get_by_role("link", name="Timeline").click()
    title = page.tab.get_by_role("heading", name="Timeline of chatcmpl-")
    title.wait_for()
    assert title.evaluate("(heading) => heading === document.activeElement")
    told = page.tab.get_by_label("Timeline", exact=True)
    events = told.get_by_role("table", name="Events")
    for words in ("First token.", "Ended at its most tokens.", "No more was cached"):
        events.get_by_text(words).wait_for()
    assert "Nobody." in told.locator("dl").inner_text()
    widths = told.locator("svg.timeline rect").evaluate_all(
        "(bars) => bars.map((bar) => bar.width.baseVal.value)"
    )
    assert sum(widths) == pytest.approx(1000, abs=3)
    assert "A riddle" not in page.tab.locator("#panel-requests").inner_text()
    page.tab.go_back()
    answer.wait_for()


def test_memory_is_drawn_with_its_options(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(f"{server.url}/#memory")
    table = page.tab.get_by_role("table", name="Memory receipt", exact=True)
    table.wait_for()
    known = table.get_by_role("rowheader").all_inner_texts()
    assert "The model's weights" in known and "Used by others, or kept back" in known
    assert not {"kv", "scratch", "activation", "unused"} & set(known)
    assert table.get_by_text("--kv-cache-tokens").is_visible()
    drawn = (
        page.tab.locator("svg.bar")
        .last.locator("rect")
        .evaluate_all("(bars) => bars.map((bar) => bar.width.baseVal.value)")
    )
    assert sum(drawn) == pytest.approx(1000)
    (blocks,) = (
        page.tab.get_by_role("row", name=re.compile("^Free"))
        .first.get_by_role("cell")
        .all_inner_texts()
    )
    assert int(blocks.replace(",", "")) > 0


def test_axe_finds_no_serious_fault(page: WatchedPage, server: ServerProcess) -> None:
    page.visit(server.url, bypass_csp=True)
    page.tab.get_by_label("Log probabilities").check()
    page.tab.get_by_label("Most tokens").fill("8")
    answer = page.send("Who art thou?")
    answer.get_by_label("Colour tokens").check()
    answer.get_by_text("Tokens as a table").click()
    page.tab.get_by_text("This request as code").click()
    assert page.serious_faults_in_both_colours() == []
    answer.get_by_role("link", name="Timeline").click()
    page.tab.get_by_role("heading", name="Timeline of").wait_for()
    assert page.serious_faults_in_both_colours() == []
    page.open("Memory")
    page.tab.get_by_role("table", name="What it holds").wait_for()
    assert page.serious_faults_in_both_colours() == []
    page.tab.get_by_role("button", name="API key").click()
    assert page.serious_faults() == []


def test_screenshots(
    page: WatchedPage, server: ServerProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = DOCS if request.config.getoption("--screenshots", default=False) else tmp_path
    page.visit(server.url)
    for label, value in (("Seed", "3"), ("Most tokens", "60")):
        page.tab.get_by_label(label).fill(value)
    page.tab.get_by_label("Log probabilities").check()
    answer = page.send("What news, my lord?")
    answer.get_by_label("Colour tokens").check()
    shoot(page, folder / "page-chat.png")
    answer.get_by_role("link", name="Timeline").click()
    page.tab.get_by_role("heading", name="Timeline of").wait_for()
    shoot(page, folder / "page-requests.png")
    page.tab.get_by_label("Colours").select_option("dark")
    page.open("Memory")
    page.tab.get_by_role("table", name="What it holds").wait_for()
    shoot(page, folder / "page-memory.png")


def shoot(page: WatchedPage, path: Path) -> None:
    page.tab.evaluate("scrollTo(0, 0)")
    page.tab.screenshot(path=path)
    assert 5_000 < os.path.getsize(path) < MAX_SCREENSHOT_BYTES
