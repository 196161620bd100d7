"""The live view in a real browser: blocks and requests as they are, a preemption, back in time."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire.scheduler.live.live_frame import LiveFrame, LivePace, TokenTimes
from quire.scheduler.reasons import Reason
from quire.scheduler.step import NO_STATS
from quire.server.observability.live.live_feed import INTERVAL_S
from tests.e2e.page.test_real_server import DOCS, shoot
from tests.e2e.page.watched_page import SIZE, WatchedPage
from tests.e2e.server_process import ServerProcess, server_process
from tests.server.observability.live.frames import (
    entered,
    event,
    progress,
    two_requests,
    whole,
)
from tests.server.scripted_engine import NUM_BLOCKS
from tests.server.served import Served, eventually

NUM_REQUESTS = 32
TIGHT = ("--num-gpu-blocks-override", "200", "--max-num-seqs", "40", "--block-size", "16")
"""Blocks for the prompts of all requests, and for half of their outputs."""


@pytest.fixture(scope="module")
def tight(browser: object) -> Iterator[ServerProcess]:
    with server_process(*TIGHT) as running:
        yield running


def test_the_view_shows_many_requests_and_a_preemption(
    page: WatchedPage, tight: ServerProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = DOCS if request.config.getoption("--screenshots", default=False) else tmp_path
    prompts = [f"{index}. To be, or not to be: that is the question" for index in range(32)]
    body = {"prompt": prompts, "max_tokens": 180, "ignore_eos": True}
    page.visit(f"{tight.url}/#live")
    tab = page.tab
    tab.get_by_label("Map of blocks").wait_for()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(tight.client.post, "/v1/completions", json=body)
        tab.get_by_role("heading", name=f"Requests in flight: {NUM_REQUESTS}").wait_for()
        lanes = tab.get_by_role("table", name="Requests in flight")
        assert lanes.get_by_role("row").count() == 1 + NUM_REQUESTS
        tab.locator("ul.told li").filter(has_text="Preempted").first.wait_for()
        lanes.get_by_role("cell", name="decode").first.wait_for()
        lanes.get_by_role("cell", name="preempted").first.wait_for()
        tab.set_viewport_size({"width": SIZE[0], "height": 960})
        shoot(page, folder / "page-live.png")
        assert answer.result().status_code == 200
    tab.get_by_role("heading", name="Requests in flight: 0").wait_for()
    assert tight.metric("quire:num_preemptions_total") > 0
    tab.get_by_label("Back in time").focus()
    for _ in range(10):
        tab.keyboard.press("ArrowLeft")
    tab.get_by_text(re.compile(r"ago$")).wait_for()
    tab.get_by_role("button", name="Go on live").click()
    tab.get_by_text(re.compile(r", live$")).wait_for()


def test_axe_finds_no_serious_fault(page: WatchedPage, tight: ServerProcess) -> None:
    page.visit(f"{tight.url}/#live", bypass_csp=True)
    page.tab.get_by_label("Map of blocks").wait_for()
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": ["To be", "Or not"], "max_tokens": 600, "ignore_eos": True}
        answer = pool.submit(tight.client.post, "/v1/completions", json=body)
        page.tab.get_by_role("cell", name="decode").first.wait_for()
        page.tab.get_by_role("button", name="Pause").click()
        assert answer.result().status_code == 200
    page.tab.get_by_role("heading", name="Requests in flight: 2").wait_for()
    page.tab.get_by_text("Blocks as a table").click()
    page.tab.get_by_role("table", name="Blocks by what they hold").wait_for()
    assert page.serious_faults_in_both_colours() == []


@pytest.fixture
def served(scripted: Served) -> Iterator[Served]:
    """Nobody watches its engine."""
    assert eventually(lambda: scripted.metric("quire:live_watchers{") == 0)
    scripted.engine.watched.clear()
    yield scripted
    scripted.engine.counted = NO_STATS


def tell(served: Served, frame: LiveFrame) -> None:
    served.do(lambda: served.engine.tell(live=frame))


def begun(page: WatchedPage, served: Served) -> None:
    page.visit(f"{served.url}/#live")
    assert eventually(lambda: served.engine.watched == [INTERVAL_S])
    tell(served, whole(NUM_BLOCKS))
    page.tab.get_by_label("Map of blocks").wait_for()


def told(page: WatchedPage) -> str:
    text: str = page.tab.locator(".map + [role=status]").inner_text()
    return text


def test_keys_and_the_mouse_tell_what_a_block_holds(page: WatchedPage, served: Served) -> None:
    begun(page, served)
    tell(served, two_requests())
    lanes = page.tab.get_by_role("table", name="Requests in flight")
    lanes.get_by_text("Waits for 3 blocks of KV memory, behind cmpl-a-0.").wait_for()
    page.tab.get_by_role("heading", name="and 7 more that wait").wait_for()
    blocks = page.tab.get_by_label("Map of blocks")
    blocks.focus()
    assert told(page).startswith("Block 0, 16 tokens: null")
    page.tab.keyboard.press("ArrowRight")
    assert told(page).startswith("Block 1, 16 tokens: in use by cmpl-a-0")
    for _ in range(2):
        page.tab.keyboard.press("ArrowRight")
    assert told(page).startswith("Block 3, 16 tokens: shared by cmpl-a-0 cmpl-b-0")
    page.tab.keyboard.press("End")
    assert told(page).startswith(f"Block {NUM_BLOCKS - 1}, 16 tokens: free")
    size = page.tab.evaluate("document.querySelector('.map canvas').width")
    blocks.hover(position={"x": 4 * 18 + 5, "y": 5})
    assert size > 100 and "cached" in told(page)
    link = lanes.get_by_role("link", name="cmpl-a-0")
    assert link.get_attribute("href") == "#requests/cmpl-a"


def test_targets_are_shown_with_the_shares_of_tokens_in_time(
    page: WatchedPage, served: Served
) -> None:
    begun(page, served)
    lines = page.tab.get_by_role("list", name="Latency targets")
    heads = page.tab.get_by_role("columnheader")
    assert lines.is_hidden() and "Targets" not in heads.all_text_contents()
    timed = entered(0, "cmpl-a-0")._replace(target_ttft_s=0.5, target_itl_s=0.05)
    waits = entered(1, "cmpl-b-0")
    paced = event(Reason.PACED, 64, "cmpl-a-0")
    told = [
        progress(0, event=event(Reason.FIRST_TOKEN))._replace(times=TokenTimes(0.31, 0.061, 3)),
        progress(1, event=paced),
    ]
    pace = LivePace(64, "cmpl-a-0", 0.048, 0.04)
    frame = LiveFrame(False, [], [], [timed, waits], [], told, 0, pace)
    served.engine.counted = NO_STATS._replace(num_ttft_met=9, num_ttft_missed=1, num_itl_met=150)
    tell(served, frame)
    lanes = page.tab.get_by_role("table", name="Requests in flight")
    lanes.get_by_text(
        "first token 310 ms of 500 ms, in time · last token 61.0 ms of 50.0 ms, late · "
        "3 later tokens late"
    ).wait_for()
    lanes.get_by_text(
        "Computed in parts: prompts get 64 tokens of a step, so that cmpl-a-0 keeps its target "
        "of 50 ms."
    ).wait_for()
    assert "Targets" in heads.all_text_contents()
    firsts, laters, paced_to = lines.get_by_role("listitem").all_inner_texts()
    lately = r"in the last \d s"
    assert re.fullmatch(rf"First tokens in time: 90 % of 10 {lately}, 90 % of 10 in all\.", firsts)
    assert re.fullmatch(rf"Later .*: 100 % of 150 {lately}, 100 % of 150 in all\.", laters)
    assert paced_to == (
        "Prompts get 64 tokens of a step, so that cmpl-a-0 keeps its target of 50 ms. The last "
        "step was expected to take 48.0 ms; such times are wrong by 4.0 % on average."
    )


def test_a_moment_of_the_past_is_shown_again(page: WatchedPage, served: Served) -> None:
    begun(page, served)
    tell(served, two_requests())
    heading = page.tab.get_by_role("heading", name=re.compile("^Requests in flight"))
    heading.filter(has_text="flight: 2").wait_for()
    free = LiveFrame(False, [1, 5, 1], [], [], [0, 1], [], 0)
    tell(served, free)
    heading.filter(has_text="flight: 0").wait_for()
    page.tab.get_by_role("button", name="Pause").click()
    page.tab.get_by_label("Back in time").press("ArrowLeft")
    heading.filter(has_text="flight: 2").wait_for()
    page.tab.get_by_label("Map of blocks").focus()
    page.tab.keyboard.press("ArrowRight")
    assert told(page).startswith("Block 1, 16 tokens: in use by cmpl-a-0")
    tell(served, two_requests()._replace(runs=[], sets=[], entered=[], progress=[]))
    page.tab.wait_for_timeout(100)
    assert "flight: 2" in heading.inner_text()
    page.tab.get_by_role("button", name="Go on live").click()
    heading.filter(has_text="flight: 0").wait_for()


def test_the_engine_is_watched_while_the_tab_is_open_alone(
    page: WatchedPage, served: Served
) -> None:
    begun(page, served)
    page.open("Memory")
    assert eventually(lambda: served.engine.watched == [INTERVAL_S, None])
    page.open("Live")
    assert eventually(lambda: served.engine.watched == [INTERVAL_S, None, INTERVAL_S])
    model = served.server.service.default_model
    tell(served, whole(NUM_BLOCKS))
    page.tab.get_by_label("Map of blocks").wait_for()
    served.do(model.live.on_engine_gone)
    served.do(model.live.on_engine_resumed)
    tell(served, whole(NUM_BLOCKS)._replace(runs=[0, 1, 0, 1, NUM_BLOCKS - 1, 2]))
    page.tab.get_by_text("Blocks as a table").click()
    page.tab.get_by_role("row", name=re.compile("^cached")).wait_for()
