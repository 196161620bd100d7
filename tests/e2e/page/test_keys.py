"""The page of a server with keys: it is shown without one, and shows what each key may see."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from quire.scheduler.live.live_frame import LiveFrame
from quire.scheduler.reasons import Reason
from quire.server.config import ApiKey
from tests.e2e.page.watched_page import WatchedPage
from tests.server.observability.live.frames import entered, event, progress
from tests.server.scripted_engine import NUM_BLOCKS
from tests.server.served import Served, plain_config, serving

ANN, BOB, ADMIN = "key-of-ann", "key-of-bob", "key-of-the-house"


@pytest.fixture(scope="module")
def guarded(browser: object) -> Iterator[Served]:
    keys = (ApiKey(ANN, "ann"), ApiKey(BOB, "bob"))
    with serving(replace(plain_config(), api_keys=keys, admin_key=ADMIN)) as running:
        yield running


def enter(page: WatchedPage, key: str) -> None:
    if page.tab.get_by_role("dialog").is_hidden():
        page.tab.get_by_role("button", name="API key").click()
    page.tab.get_by_label("Key", exact=True).fill(key)
    page.tab.get_by_role("button", name="Use this key").click()


def only_refusals(page: WatchedPage, *statuses: int) -> None:
    assert page.faults
    assert all(any(f" {status} " in each for status in statuses) for each in page.faults)
    page.faults.clear()


def test_a_key_is_asked_for_and_kept_in_the_session_alone(
    page: WatchedPage, guarded: Served
) -> None:
    page.visit(guarded.url)
    page.tab.get_by_role("dialog").get_by_text("This server asks for a key.").wait_for()
    enter(page, "key-of-nobody")
    page.tab.get_by_role("dialog").get_by_text("does not know this key").wait_for()
    only_refusals(page, 401)
    enter(page, ANN)
    page.tab.get_by_label("Model").get_by_role("option").first.wait_for(state="attached")
    page.tab.get_by_label("Most tokens").fill("4")
    page.send("A secret prompt.")
    kept = page.tab.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie]")
    assert kept == [{"quire.key": ANN}, {}, ""]
    assert ANN not in page.tab.url
    page.tab.get_by_text("This request as code").click()
    code = page.tab.get_by_role("region", name="The request as code")
    code.get_by_text("$QUIRE_API_KEY").first.wait_for()
    assert "$QUIRE_API_KEY" in code.inner_text() and ANN not in code.inner_text()
    page.tab.get_by_role("button", name="API key").click()
    assert page.tab.get_by_label("Key", exact=True).input_value() == ""
    page.tab.get_by_role("button", name="Forget it").click()
    page.tab.get_by_role("dialog").get_by_text("This server asks for a key.").wait_for()
    assert page.tab.evaluate("sessionStorage.length") == 0
    only_refusals(page, 401)


def test_each_key_sees_its_own_requests_and_the_admin_all(
    page: WatchedPage, guarded: Served
) -> None:
    for key in (ANN, BOB):
        headers = {"authorization": f"Bearer {key}", "x-request-id": f"sent-by-{key[-3:]}"}
        body = {"prompt": f"Secret of {key[-3:]}", "max_tokens": 2}
        reply = guarded.client.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200
    page.visit(guarded.url)
    enter(page, BOB)
    page.open("Requests")
    table = page.tab.get_by_role("table", name="Requests")
    table.get_by_role("link").first.wait_for()
    assert table.get_by_role("link").count() == 1
    page.tab.get_by_label("Of all keys").click()  # and it takes itself back
    page.tab.get_by_role("alert").filter(has_text="admin key").wait_for()
    assert not page.tab.get_by_label("Of all keys").is_checked()
    enter(page, ADMIN)
    page.tab.get_by_text("There are none yet.").wait_for()
    page.tab.get_by_label("Of all keys").check()
    table.get_by_role("columnheader", name="Key").wait_for()
    names = table.get_by_role("row").locator("td:last-child").all_inner_texts()
    assert {"ann", "bob"} <= set(names)
    assert "Secret" not in page.tab.locator("body").inner_text()
    only_refusals(page, 401, 403)


def test_the_live_view_is_of_ones_own_requests(page: WatchedPage, guarded: Served) -> None:
    requests = [entered(0, "cmpl-anns-0", "ann"), entered(1, "cmpl-bobs-0", "bob")]
    told = [progress(each, event=event(Reason.ADMITTED)) for each in range(2)]
    frame = LiveFrame(True, [0, 1, 0, 1, NUM_BLOCKS - 1, 1, 2, 1, 16], [], requests, [], told, 0)
    frame = frame._replace(runs=[*frame.runs, 3, 4, 17], sets=[(16, (0,)), (17, (1,))])
    page.visit(f"{guarded.url}/#live")
    lanes = page.tab.get_by_role("table", name="Requests in flight")
    for key, seen in ((BOB, ["cmpl-bobs-0"]), (ADMIN, ["cmpl-anns-0", "cmpl-bobs-0"])):
        enter(page, key)
        for _ in range(50):  # the stream of the key before may not have ended yet
            guarded.do(lambda: guarded.engine.tell(live=frame))
            page.tab.wait_for_timeout(100)
            if lanes.get_by_role("link").count() == len(seen):
                break
        lanes.get_by_text(seen[-1]).wait_for()
        assert lanes.get_by_role("link").all_text_contents() == seen
        page.tab.get_by_label("Map of blocks").press("ArrowRight")
        page.tab.keyboard.press("ArrowRight")
        words = "in use by cmpl-anns-0" if key == ADMIN else "held"
        page.tab.get_by_text(f"Block 2, 16 tokens: {words}").wait_for()
        page.tab.get_by_label("Map of blocks").press("Home")
    assert lanes.get_by_text("bob", exact=True).count() == 1
    only_refusals(page, 401)


def test_the_memory_receipt_is_the_admins(page: WatchedPage, guarded: Served) -> None:
    page.visit(guarded.url)
    enter(page, ANN)
    page.open("Memory")
    page.tab.get_by_role("table", name="Blocks by state").wait_for()
    page.tab.get_by_role("alert").filter(has_text="wants the admin key").wait_for()
    assert page.tab.get_by_role("table", name="Memory receipt").count() == 0
    enter(page, ADMIN)
    page.tab.get_by_role("table", name="Memory receipt").wait_for()
    assert page.tab.get_by_role("alert").filter(has_text="admin key").count() == 0
    only_refusals(page, 401, 403)
