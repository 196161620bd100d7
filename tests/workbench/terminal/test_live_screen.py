"""The live view holds what its events say, and fits a terminal of any size."""

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from quire.workbench.terminal.block_map import NAMES, PLAIN_GLYPHS, cells_of, draw_map
from quire.workbench.terminal.live_events import BadEvent, TokensInTime, read_event
from quire.workbench.terminal.live_screen import ScreenState, draw, sparkline
from quire.workbench.terminal.live_state import IN_USE, SHARED, LiveState
from quire.workbench.terminal.live_targets import RECENT_S, TargetHistory
from tests.workbench.terminal.live_samples import FIGURES, STATES, changes, engine, picture, request

VIEW = ScreenState("http://x:1", "", is_paused=False, is_ascii=True)
NUM_BLOCKS = 64
SOME_RUNS = st.lists(
    st.tuples(
        st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_BLOCKS), st.sampled_from((*range(8), 16))
    ).map(lambda run: (run[0], min(run[1], NUM_BLOCKS - run[0]), run[2])),
    max_size=8,
)


def told(*events: Mapping[str, object]) -> LiveState:
    state = LiveState()
    for event in events:
        state.apply(read_event(json.dumps(event).encode()))
    return state


def shown(state: LiveState, width: int = 100, height: int = 24) -> str:
    return draw(state, VIEW, width, height).plain


@given(st.lists(SOME_RUNS, max_size=4))
def test_the_last_run_that_names_a_block_says_what_it_is(
    steps: list[list[tuple[int, int, int]]],
) -> None:
    codes = [1] * NUM_BLOCKS
    events = [picture((0, NUM_BLOCKS, 1), NUM_BLOCKS)]
    for runs in steps:
        for first, count, code in runs:
            codes[first : first + count] = [code] * count
        events.append(changes([number for run in runs for number in run]))
    state = told(*events)
    assert state.kinds.tolist() == [IN_USE if code == 16 else code for code in codes]
    assert state.holders.tolist() == [0 if code == 16 else -1 for code in codes]


@given(st.integers(1, 80), st.integers(1, 20), st.integers(1, 6), st.data())
def test_a_map_fits_and_covers_every_block_once(
    num_blocks: int, width: int, rows: int, data: st.DataObject
) -> None:
    codes = data.draw(st.lists(st.integers(1, 7), min_size=num_blocks, max_size=num_blocks))
    runs = [number for index, code in enumerate(codes) for number in (index, 1, code)]
    state = told(picture(runs, num_blocks))
    cells = cells_of(state, width * rows)
    lines = draw_map(state, cells, width, is_ascii=True)
    assert len(lines) <= rows and all(len(line.plain) <= width for line in lines)
    assert (len(cells.kinds) - 1) * cells.num_blocks < num_blocks
    assert num_blocks <= len(cells.kinds) * cells.num_blocks
    for index, kind in enumerate(cells.kinds):
        part = codes[index * cells.num_blocks : (index + 1) * cells.num_blocks]
        assert part.count(kind) == max(map(part.count, part))


@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 12), st.integers(1, 2000))
def test_the_screen_is_never_larger_than_the_terminal(
    width: int, height: int, num_requests: int, num_blocks: int
) -> None:
    entered = [request(n, f"chat-\u202e{n}") for n in range(1, num_requests + 1)]
    progress = [[each["n"], "prefill", 3, 0, 1, None] for each in entered]
    state = told(
        picture((0, num_blocks, 2), num_blocks), changes(entered=entered, progress=progress)
    )
    lines = shown(state, width, height).split("\n")
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


def test_blocks_requests_and_figures_are_shown() -> None:
    text = shown(told(engine("loaded"), picture()))
    for words in ("small", "loaded", "running 1", "step 74.5 ms", "hits 50%", "tokens/s 12.0"):
        assert words in text
    assert "\n.#c.....\n" in text
    assert "cmpl-a-0" in text and "12/25 tokens, 4 out" in text and "first token" in text
    assert "a cell is a block" in text


TIMED = {**request(1, "cmpl-b-0"), "arrived": 999.5, "target_ttft_ms": 800, "target_itl_ms": 50}
COUNTS = {"ttft_met": 9, "ttft_missed": 1, "itl_met": 150, "itl_missed": 0}
PACE = {"prompt_tokens": 64, "other": "b", "text": "Prompts get 64 tokens.", "error": 0.04}


def test_targets_take_no_room_where_there_are_none() -> None:
    text = shown(told(picture()))
    assert "in time" not in text and " of 800 ms" not in text
    assert text.split("\n")[3].endswith("a cell is a block"), "the legend is next"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (None, "no token for 1500 of 800 ms, later within 50 ms"),
        ([None, None, 0], "no token for 1500 of 800 ms, later within 50 ms"),
        ([310.4, None, 0], "first token 310 of 800 ms, later within 50 ms"),
        ([310.4, 61.2, 2], "first token 310 of 800 ms, later 61 of 50 ms, 2 late"),
    ],
)
def test_the_targets_of_a_request_are_shown_with_its_times(
    times: list[float | None] | None, words: str
) -> None:
    why = {"event": "paced", "number": 64, "other": "b", "text": "Computed in parts."}
    progress = [[1, "prefill", 3, 0, 0, why, times]]
    text = shown(told(picture(), changes(entered=[TIMED], progress=progress)), 160)
    assert f"  {words}  Computed in parts." in text


def test_tokens_in_time_are_shown_lately_and_in_all_with_the_pace() -> None:
    figures = {**FIGURES, "targets": COUNTS, "pace": PACE}
    state = told(picture(), changes(figures=figures))
    assert (
        "first tokens in time: 90.0% of 10 in 1 s, 90.0% of 10 in all  "
        "later tokens in time: 100.0% of 150 in 1 s, 100.0% of 150 in all"
    ) in shown(state, 200)
    more = {**COUNTS, "itl_missed": 50, "ttft_met": 19}
    figures |= {"targets": more, "pace": {**PACE, "predicted_ms": 81.25}}
    for t in (1030.0, 1090.0):
        state.apply(read_event(json.dumps(changes(figures=figures) | {"t": t}).encode()))
    text = shown(state, 200)
    assert "first tokens in time: 95.0% of 20 in all  later tokens in time: 75.0% of 200" in text
    assert "Prompts get 64 tokens. Expected step 81.2 ms, wrong by 4%." in text


@given(st.lists(st.tuples(st.floats(0, 200), *[st.integers(0, 99)] * 4), min_size=1, max_size=30))
def test_lately_is_what_came_within_the_last_minute(
    steps: list[tuple[float, int, int, int, int]],
) -> None:
    """The counts of each event are added to those before it."""
    history, now, sums = TargetHistory(), 0.0, [0, 0, 0, 0]
    points = []
    for wait_s, *counts in steps:
        now += wait_s
        sums = [one + more for one, more in zip(sums, counts, strict=True)]
        points.append((now, *sums))
        history.add(now, TokensInTime(*sums))
    before = [each for each in points if each[0] <= now - RECENT_S][-1:] or points[:1]
    num_met, num_missed = (sums[index] - before[0][1 + index] for index in (0, 1))
    words = history.words()
    num_lately = num_met + num_missed
    assert (
        (f"first tokens in time: {num_met / num_lately:.1%} of {num_lately} in " in words)
        if (num_lately)
        else (" s, " not in words.partition("later")[0])
    )
    assert bool(words) is any(sums)


def test_a_server_that_began_anew_is_not_counted_back() -> None:
    history = TargetHistory()
    for now, met in enumerate((50, 60, 5)):
        history.add(now, TokensInTime(met))
    assert history.words() == "first tokens in time: 100.0% of 5 in all"


def test_shared_blocks_are_told_apart_and_more_blocks_than_cells_are_aggregated() -> None:
    state = told(picture((0, 1, 0, 1, 3, 17, 4, 4, 3)))
    assert state.kinds.tolist() == [0, SHARED, SHARED, SHARED, 3, 3, 3, 3]
    text = shown(told(picture((0, 500000, 2), 500000)), 100, 20)
    (num_each,) = re.findall(r"a cell is (\d+) blocks", text)
    assert 500000 / int(num_each) > 800  # of 12 or so lines of 100


def test_what_left_is_gone_and_why_stays_until_it_is_told_anew() -> None:
    news = changes(
        entered=[request(1, "cmpl-b-0")], progress=[[1, "queued", 0, 0, 0, None]], sets=[[18, [1]]]
    )
    state = told(picture(), news, changes((1, 1, 18)))
    assert [lane.request.id for lane in state.lanes()] == ["cmpl-a-0", "cmpl-b-0"]
    state.apply(read_event(json.dumps(changes((1, 1, 2), left=[1])).encode()))
    moved = changes(progress=[[0, "decode", 13, 5, 0, None]])
    state.apply(read_event(json.dumps(moved).encode()))
    ((_, progress),) = state.lanes()
    assert progress.outputs == 5 and progress.why is not None
    assert progress.why.event == "first_token"


def test_a_model_that_is_not_loaded_has_no_blocks() -> None:
    text = shown(told(picture(), engine("restarting")))
    assert "restarting" in text and "cmpl-a-0" not in text and "#" not in text


@pytest.mark.parametrize(
    "event",
    [
        changes((7, 2, 1)),
        changes((-1, 2, 1)),
        changes((0, 1)),
        changes((0, 1, 9)),
        changes((0, 1, 99)),
        picture((0, 1, 1), 2**30),
        {"type": "other"},
        {"type": "changes"},
    ],
)
def test_events_that_cannot_be_are_refused(event: Mapping[str, object]) -> None:
    state = told(picture())
    with pytest.raises(BadEvent):
        state.apply(read_event(json.dumps(event).encode()))


def test_bytes_that_are_no_json_are_refused() -> None:
    with pytest.raises(BadEvent):
        read_event(b"\xff{")


@given(st.lists(st.floats(0, 1e9), max_size=50), st.booleans())
def test_bars_are_as_high_as_their_share_of_the_largest(values: list[float], plain: bool) -> None:
    bars = sparkline(values, plain)
    assert len(bars) == min(len(values), 30)
    newest = values[-30:]
    for one, other in zip(newest, newest[1:], strict=False):
        order = "_.:-=+*#" if plain else "▁▂▃▄▅▆▇█"
        first, second = (order.index(bars[i]) for i in (newest.index(one), newest.index(other)))
        assert (first <= second) or one > other


def test_every_kind_has_its_own_name() -> None:
    assert NAMES[: len(STATES)] == tuple(name.replace("_", " ") for name in STATES)
    assert set(PLAIN_GLYPHS) == set(range(1, len(NAMES)))
