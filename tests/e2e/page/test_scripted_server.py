"""The page in a real browser with a server whose engine says what a test wants: hostile outputs,
stops, errors, timelines of every kind, and the keyboard alone."""

import json
import re
from collections.abc import Iterator
from itertools import chain, repeat

import pytest
from msgspec import UNSET, to_builtins

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event
from quire.server.observability.timeline_view import EventOut
from quire.server.observability.timeline_words import sentence
from tests.e2e.page.watched_page import WatchedPage
from tests.server.scripted_engine import FACTS, repeat_prompt
from tests.server.served import Served, bundled_tokenizer, eventually, hold_after_first_token

HOSTILE = (
    "<script>document.title = 'pwned'</script><img src=x onerror=alert(1)><style>*{}</style>"
    "<iframe src=//evil.example></iframe>[a](javascript:alert(1)) &lt;b"
    "\u202etxt.exe\u2066\u200b\u0007\u001b[31m"
)
MARKS = ["U+202E", "U+2066", "U+200B", "U+0007", "U+001B"]


@pytest.fixture
def served(scripted: Served) -> Iterator[Served]:
    yield scripted
    scripted.engine.script = repeat_prompt
    scripted.engine.may_step.set()
    scripted.engine.aborted.clear()


def saying(text: str) -> Iterator[int]:
    """The tokens of a text, and the end of the sequence."""
    tokens = bundled_tokenizer().encode(text, add_special_tokens=False)
    return chain(tokens, repeat(FACTS.eos_token_ids[0]))


@pytest.mark.parametrize("colours_tokens", [False, True])
def test_a_hostile_output_stays_text(
    page: WatchedPage, served: Served, colours_tokens: bool
) -> None:
    served.engine.script = lambda _: saying(HOSTILE)
    page.visit(served.url)
    page.tab.get_by_label("Log probabilities").set_checked(colours_tokens)
    answer = page.send(HOSTILE[-20:])
    shown = answer.locator(".said")
    if colours_tokens:
        answer.get_by_label("Colour tokens").check()
        shown = answer.locator(".output:has(> .token)")
    assert shown.inner_text().startswith(HOSTILE.partition("\u202e")[0])
    assert shown.locator(".mark").all_inner_texts() == MARKS
    assert page.tab.locator(".turn.user .mark").all_inner_texts() == MARKS
    for tag in ("script", "img", "style", "iframe", "a[href^=javascript]"):
        assert page.tab.locator(f"#panels {tag}").count() == 0
    assert page.tab.title() == "Quire"
    bidi = shown.evaluate("(box) => getComputedStyle(box).unicodeBidi")
    mark = shown.locator(".mark").first.evaluate("(box) => getComputedStyle(box).unicodeBidi")
    assert (bidi, mark) == ("plaintext", "isolate")


def test_the_policy_refuses_what_is_not_the_pages(page: WatchedPage, served: Served) -> None:
    page.visit(served.url)
    made = """() => {
        const script = document.createElement("script");
        try { script.text = "document.title = 'pwned'"; } catch (error) { return error.name; }
    }"""
    assert page.tab.evaluate(made) == "TypeError"
    fetched = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)"
    assert page.tab.evaluate(fetched) == "TypeError"
    assert len(page.faults) >= 2
    assert all("Security Policy" in each or "Trusted" in each for each in page.faults)
    page.faults.clear()


def test_stop_ends_the_request_at_the_server(page: WatchedPage, served: Served) -> None:
    hold_after_first_token(served)
    page.visit(served.url)
    page.tab.get_by_label("Message").fill("Go on for ever.")
    page.tab.get_by_role("button", name="Send").click()
    page.tab.locator(".said:not(:empty)").wait_for()
    assert page.tab.get_by_role("button", name="Send").is_disabled()
    page.tab.get_by_role("button", name="Stop").click()
    page.tab.get_by_role("status").filter(has_text="was stopped").wait_for()
    assert eventually(lambda: bool(served.engine.aborted))
    assert page.tab.get_by_role("button", name="Stop").is_disabled()
    assert page.tab.get_by_role("button", name="Send").is_enabled()


def test_a_live_request_is_followed_and_cancelled(page: WatchedPage, served: Served) -> None:
    hold_after_first_token(served)
    page.visit(served.url)
    page.tab.get_by_label("Message").fill("Go on for ever.")
    page.tab.get_by_role("button", name="Send").click()
    page.tab.locator(".said:not(:empty)").wait_for()
    page.open("Requests")
    page.tab.get_by_role("row").nth(1).get_by_role("link").click()
    page.tab.get_by_text("· live ·").wait_for()
    page.tab.get_by_role("button", name="Cancel this request").click()
    page.tab.get_by_text("· ended ·").wait_for()
    assert page.tab.get_by_role("button", name="Cancel this request").is_hidden()
    page.open("Chat")
    page.tab.get_by_role("status").filter(has_text="was cancelled").wait_for()


def test_targets_are_listed_with_what_came_of_them(page: WatchedPage, served: Served) -> None:
    page.visit(f"{served.url}/#requests")
    rows = page.tab.get_by_role("row")
    assert served.complete(prompt="Plain", max_tokens=2).status_code == 200
    page.tab.get_by_role("button", name="Refresh").click()
    rows.nth(1).wait_for()
    targets = {"target_ttft_ms": 60_000, "target_itl_ms": 50_000}
    answer = served.complete(prompt="Urgent", max_tokens=3, **targets)
    page.tab.get_by_role("button", name="Refresh").click()
    head = page.tab.get_by_role("columnheader", name="Targets")
    head.wait_for()
    words = re.compile(
        r"first token [\d.]+ ms of 60\.00 s, in time · later ones [\d.]+ ms of 50\.00 s on "
        r"average · 0 later tokens late"
    )
    assert words.search(rows.nth(1).inner_text())
    assert not words.search(rows.nth(2).inner_text())
    rows.nth(1).get_by_role("link", name=answer.json()["id"]).click()
    told = page.tab.get_by_label("Timeline", exact=True)
    told.get_by_text(words).wait_for()
    assert "Targets: first token" in told.inner_text()


def test_an_error_is_said_and_the_message_is_kept(page: WatchedPage, served: Served) -> None:
    page.visit(served.url)
    page.tab.get_by_label("Stop strings").fill("x" * 2000)
    page.tab.get_by_label("Message").fill("Who?")
    page.tab.get_by_role("button", name="Send").click()
    page.tab.get_by_role("alert").filter(has_text="stop").wait_for()
    assert page.tab.get_by_label("Message").input_value() == "Who?"
    assert all("400" in each for each in page.faults) and len(page.faults) == 1
    page.faults.clear()


def test_the_keyboard_is_enough(page: WatchedPage, served: Served) -> None:
    page.visit(served.url)
    press, focused = page.tab.keyboard.press, "document.activeElement"
    press("Tab")
    assert page.tab.evaluate(f"{focused}.textContent") == "Skip to the content"
    press("Tab")
    assert page.tab.evaluate(f"{focused}.textContent") == "Chat"
    outline = page.tab.evaluate(f"getComputedStyle({focused}).outlineStyle")
    assert outline == "solid"
    for key, tab in (("ArrowRight", "Requests"), ("End", "Memory"), ("ArrowRight", "Chat")):
        press(key)
        assert page.tab.evaluate(f"{focused}.textContent") == tab
        assert page.tab.get_by_role("tab", selected=True).inner_text() == tab
        assert page.tab.get_by_role("tabpanel").count() == 1
    walk_to(page, "Most tokens")
    page.tab.keyboard.type("9")
    walk_to(page, "Message")
    page.tab.keyboard.type("one two three")
    press("Shift+Enter")
    page.tab.keyboard.type("four")
    assert page.tab.locator(".turn").count() == 0
    press("Enter")
    page.tab.get_by_role("status").filter(has_text="The answer").wait_for()
    walk_to(page, "API key")
    press("Enter")
    assert page.tab.get_by_role("dialog").is_visible()
    press("Escape")
    assert page.tab.get_by_role("dialog").is_hidden()
    assert page.tab.evaluate(f"{focused}.id") == "key"


def walk_to(page: WatchedPage, name: str) -> None:
    """Press Tab until what has this label or text has the focus."""
    label = "(element) => element.labels?.[0]?.textContent ?? element.textContent"
    for _ in range(60):
        page.tab.keyboard.press("Tab")
        if page.tab.locator(":focus").evaluate_all(f"(all) => all.map({label})") == [name]:
            return
    raise AssertionError(f"{name} cannot be reached by the keyboard")


def test_screen_readers_are_told_of_beginning_and_end_alone(
    page: WatchedPage, served: Served
) -> None:
    page.visit(served.url)
    page.tab.evaluate("""() => {
        window.said = [];
        const status = document.querySelector("#panel-chat [role=status]");
        new MutationObserver(() => said.push(status.textContent)).observe(
            status, { childList: true, characterData: true, subtree: true });
    }""")
    page.tab.get_by_label("Most tokens").fill("40")
    page.send("one two three")
    said = page.tab.evaluate("said")
    assert [each[:10] for each in said if each] == ["Answering…", "The answer"]
    assert page.tab.get_by_role("log").get_attribute("aria-live") == "off"


def test_colours_follow_the_system_or_the_choice(page: WatchedPage, served: Served) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page.tab.emulate_media(color_scheme="dark")
    page.visit(served.url)
    dark = page.tab.evaluate(ground)
    page.tab.emulate_media(color_scheme="light")
    light = page.tab.evaluate(ground)
    assert dark != light
    page.tab.get_by_label("Colours").select_option("dark")
    assert page.tab.evaluate(ground) == dark
    page.tab.reload()
    assert page.tab.evaluate(ground) == dark
    assert page.tab.get_by_label("Colours").input_value() == "dark"


def timeline_of_everything(id: str) -> dict[str, object]:
    """A timeline that no request has: with every event once, and another request in each."""
    events = [
        to_builtins(EventOut(t, reason, sentence(event), 3, UNSET, event.other))
        for t, reason in enumerate(Reason)
        for event in [Event(0.0, reason, 3, "cmpl-of-mine-0")]
    ]
    spans = [
        {"part": "received", "start_ms": 0.0, "end_ms": 10.0},
        {"part": "preempted", "start_ms": 10.0, "end_ms": 100.0},
    ]
    parts = {"received": 10.0, "queued": 0, "prefill": 0, "preempted": 90.0, "delivered": 0}
    counts = {"prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 5, "preemptions": 1}
    choice = {"index": 0, "finish": "max_tokens", "parts": parts, "spans": spans, "events": events}
    choice["counts"] = counts | {"lost_tokens": 7}
    told: dict[str, object] = {"id": id, "object": "request.timeline", "created": 0}
    return told | {
        "model": "<b>\u202emodel",
        "state": "ended",
        "refused": None,
        "total_ms": 100.0,
        "choices": [choice],
    }


def test_a_timeline_says_who_preempted_and_why_it_waited(page: WatchedPage, served: Served) -> None:
    told = json.dumps(timeline_of_everything("cmpl-made-up"))
    page.tab.route("**/v1/requests/cmpl-*", lambda route: route.fulfill(body=told))
    page.visit(f"{served.url}/#requests/cmpl-made-up")
    page.tab.get_by_role("heading", name="Timeline of cmpl-made-up").wait_for()
    answers = page.tab.locator("dl")
    said = answers.inner_text()
    for words in (
        "16 tokens of 40 prompt tokens.",
        "Waits for 3 blocks of KV memory, behind cmpl-of-mine-0.",
        "Preempted for cmpl-of-mine-0; 3 tokens were thrown away.",
        "No more was cached: from token 3 on it was, but has been evicted.",
    ):
        assert words in said
    links = answers.get_by_role("link").all()
    assert {each.get_attribute("href") for each in links} == {"#requests/cmpl-of-mine"}
    events = page.tab.get_by_role("table", name="Events").get_by_role("row")
    assert events.count() == len(Reason) + 1
    assert "_" not in " ".join(events.all_inner_texts()).replace("cmpl-of-mine", "")
    assert page.tab.locator("#panel-requests .mark").first.inner_text() == "U+202E"


def test_an_old_address_opens_nothing_and_says_so(page: WatchedPage, served: Served) -> None:
    page.visit(f"{served.url}/#requests/cmpl-long-gone")
    page.tab.get_by_role("alert").filter(has_text="No request 'cmpl-long-gone'").wait_for()
    page.visit(f"{served.url}/#requests/%E0%A4%A")
    assert page.tab.get_by_role("tab", selected=True).inner_text() == "Requests"
    assert page.faults and all("404" in each for each in page.faults)
    page.faults.clear()


def test_reading_a_stream_to_its_end_aborts_nothing(page: WatchedPage, served: Served) -> None:
    served.engine.aborted.clear()
    failed: list[str] = []
    page.visit(served.url)
    page.tab.on("requestfailed", lambda request: failed.append(request.url))
    page.tab.get_by_label("Most tokens").fill("9")
    page.send("one two three")
    assert failed == [] and served.engine.aborted == []
