"""Sessions: how a turn is known, what is kept for it and for how long, who waits for that."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.sessions.sessions import LEAD_S
from tests.scheduler.driver import Driver
from tests.scheduler.sessions.turns import (
    OUTPUTS,
    ROOMY,
    TEXT,
    another,
    busy,
    events,
    num_cached,
    reasons,
    roomy,
    serve,
    turn,
)


@pytest.mark.parametrize("said", [TEXT + OUTPUTS, TEXT], ids=["whole", "reasoning left out"])
def test_a_turn_is_known_by_the_last_blocks_before(said: tuple[int, ...]) -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT))
    ended_s = driver.now
    driver.now += 2.0
    serve(driver, turn("b", (*said, 50, 51)))
    (event,) = events(driver, "b", Reason.NEXT_TURN)
    assert (event.other, event.number) == ("a", 1000 * (driver.arrived_s["b"] - ended_s))
    serve(driver, turn("c", (*said, 50, 51, *OUTPUTS, 52)))
    assert events(driver, "c", Reason.NEXT_TURN)[0].other == "b"
    assert driver.scheduler.stats.num_turns == 2


@pytest.mark.parametrize(
    "other",
    [
        turn("b", TEXT),
        turn("b", TEXT[:8]),
        turn("b", (*TEXT, 50), tenant="else"),
        turn("b", (99, *TEXT[1:], 50, 51)),
        turn("b", (*TEXT, 50), max_tokens=0),
    ],
    ids=["again", "shorter", "of another tenant", "another beginning", "no answer wanted"],
)
def test_others_are_no_turns(other: NewRequest) -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT))
    serve(driver, other)
    assert not events(driver, "b", Reason.NEXT_TURN)


def test_a_name_makes_half_of_a_prompt_enough() -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT, session="mine"))
    serve(driver, turn("b", (*TEXT[:10], 50, 51), session="mine"))
    assert events(driver, "b", Reason.NEXT_TURN)
    serve(driver, turn("c", (*TEXT[:4], *range(8)), session="mine"))
    assert not events(driver, "c", Reason.NEXT_TURN)
    serve(driver, turn("d", (*TEXT[:10], *range(8)), session="other"))
    assert not events(driver, "d", Reason.NEXT_TURN)


def test_of_two_turns_that_begin_alike_one_goes_on() -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT))
    driver.add(turn("b", (*TEXT, 50, 51)))
    driver.add(turn("c", (*TEXT, 60, 61)))
    driver.run()
    assert [len(events(driver, each, Reason.NEXT_TURN)) for each in "bc"] == [1, 0]


@pytest.mark.parametrize(
    ("calls_tools", "keeps", "is_found"),
    [(True, True, True), (False, True, False), (None, True, False), (True, False, False)],
    ids=["calls tools", "calls none", "not said", "switched off"],
)
def test_blocks_are_kept_behind_a_call(
    calls_tools: bool | None, keeps: bool, is_found: bool
) -> None:
    driver = roomy(config=replace(ROOMY, keep_sessions=keeps))
    serve(driver, turn("a", TEXT), calls_tools=calls_tools)
    serve(driver, another("other", 500, max_tokens=1))
    serve(driver, another("yet another", 500, max_tokens=1))
    serve(driver, turn("b", (*TEXT, *OUTPUTS, 50)))
    assert (num_cached(driver, "b") >= len(TEXT)) is is_found
    stats = driver.scheduler.stats
    assert stats.num_turns_kept == (calls_tools is True and keeps)


def test_blocks_are_kept_no_longer_than_it_pays() -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT), calls_tools=True)
    assert driver.scheduler.stats.num_blocks_kept == 9
    driver.now += 400.0
    serve(driver, another("other", 500))
    serve(driver, another("yet another", 500))
    stats = driver.scheduler.stats
    assert (stats.num_blocks_kept, stats.num_kept_expired) == (0, 1)
    serve(driver, turn("b", (*TEXT, *OUTPUTS, 50)))
    assert num_cached(driver, "b") < len(TEXT)


def test_what_is_kept_is_no_reserve() -> None:
    """A request that needs every block gets them."""
    driver = roomy()
    serve(driver, turn("a", TEXT), calls_tools=True)
    serve(driver, another("large", 796))
    assert driver.scheduler.stats.num_preemptions == 0


def test_a_session_that_is_over_is_evicted_first() -> None:
    """It is used last, but what others have used before is found, and its first prompt too."""
    driver = roomy(40)
    serve(driver, another("old", 16))
    serve(driver, turn("a", TEXT), calls_tools=True)
    said = (*TEXT, *OUTPUTS, *range(200, 210))
    serve(driver, turn("b", said), calls_tools=False)
    serve(driver, another("new", 26))
    again = another("old", 16)
    serve(driver, replace(again, id="again", prompt_token_ids=(*again.prompt_token_ids, 3)))
    assert num_cached(driver, "again") == 16
    serve(driver, turn("first", (*TEXT, 60)))
    assert num_cached(driver, "first") == 16
    serve(driver, turn("c", (*said, *OUTPUTS, 50)))
    assert num_cached(driver, "c") < len(said)


def test_a_new_session_waits_rather_than_take_what_is_kept() -> None:
    driver = busy()
    driver.add(another("new", 780))
    driver.step()
    assert "new" in driver.waiting
    driver.add(turn("b", (*TEXT, *OUTPUTS, 50)))
    driver.run()
    assert Reason.WAITS_FOR_SESSIONS in reasons(driver, "new")
    admitted = [name for name, _ in driver.admissions]
    assert admitted.index("b") < admitted.index("new")
    assert num_cached(driver, "b") >= len(TEXT)
    assert driver.scheduler.stats.num_held_for_sessions == 1


def test_nobody_waits_for_what_is_kept_longer_than_the_lead() -> None:
    driver = busy(replace(ROOMY, max_num_seqs=2))
    driver.add(another("new", 780))
    waited = 0
    while "new" in driver.waiting:
        driver.step()
        waited += 1
    assert waited <= LEAD_S + 1


def test_the_wait_of_one_who_has_left_lets_nobody_in() -> None:
    driver = busy()
    driver.add(another("new", 780))
    driver.step()
    assert driver.scheduler.abort("new", driver.now) is not None
    for _ in range(int(LEAD_S) + 1):
        driver.step()
    serve(driver, turn("b", (*TEXT, *OUTPUTS, 50)), calls_tools=True)
    driver.add(another("second", 740))
    driver.step()
    assert "second" in driver.waiting
    assert driver.scheduler.stats.num_held_for_sessions == 2


def test_nobody_waits_beside_an_idle_device() -> None:
    driver = roomy()
    serve(driver, turn("a", TEXT), calls_tools=True)
    driver.add(another("new", 790))
    driver.step()
    assert "new" not in driver.waiting


@pytest.mark.parametrize("priority", [-1, 0])
def test_a_better_priority_does_not_wait(priority: int) -> None:
    driver = busy(replace(ROOMY, scheduling_policy=PolicyName.PRIORITY))
    driver.add(replace(another("new", 780), priority=priority))
    driver.step()
    assert ("new" in driver.waiting) is (priority == 0)


@pytest.mark.parametrize("tenant", ["", "else"])
def test_a_fair_share_does_not_wait_for_others(tenant: str) -> None:
    driver = busy(replace(ROOMY, scheduling_policy=PolicyName.FAIR))
    driver.add(replace(another("new", 780), tenant=tenant))
    driver.step()
    assert ("new" in driver.waiting) is (tenant == "")


def test_what_a_client_asks_to_keep_is_evicted_behind_others() -> None:
    driver = roomy(40)
    serve(driver, turn("a", TEXT, retention_s=60.0))
    for number in range(3):
        serve(driver, another(f"other {number}", 30))
    assert driver.scheduler.stats.num_blocks_kept == 8
    serve(driver, turn("again", (*TEXT, 50)))
    assert num_cached(driver, "again") == len(TEXT)
    driver.now += 100.0
    serve(driver, another("other", 30))
    assert driver.scheduler.stats.num_blocks_kept == 0


def test_a_reset_keeps_nothing() -> None:
    driver = roomy(40)
    serve(driver, turn("a", TEXT, retention_s=60.0), calls_tools=True)
    driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.stats.num_blocks_kept == 0
    serve(driver, turn("b", (*TEXT, *OUTPUTS, 50)), calls_tools=True)
    assert num_cached(driver, "b") == 0
    driver.run()


def test_tenants_keep_no_more_than_their_shares() -> None:
    """One of two tenants has four sessions of 64 blocks each: as many are kept as half of the pool
    holds, the newest."""
    driver = roomy()
    driver.add(replace(another("long", 8, max_tokens=55), tenant="two"))
    for number in range(4):
        text = (number, *range(1, 128))
        serve(driver, turn(f"a{number}", text, tenant="one", retention_s=60.0))
    stats = driver.scheduler.stats
    assert (stats.num_blocks_kept, stats.num_kept_crowded_out) == (192, 1)


@given(st.data())
@settings(max_examples=30)
def test_every_turn_ends_whoever_else_comes(data: st.DataObject) -> None:
    """Sessions of random gaps share few blocks; nobody waits for ever, new sessions neither."""
    draw = data.draw
    config = replace(
        ROOMY,
        scheduling_policy=draw(st.sampled_from(PolicyName)),
        max_num_seqs=draw(st.integers(1, 4)),
    )
    driver = Driver(config, draw(st.integers(34, 80)), caches_prefixes=True)
    texts = {number: (number, *TEXT[1:]) for number in range(6)}
    due = {number: draw(st.integers(0, 5)) for number in texts}
    turns = dict.fromkeys(texts, 0)
    for step in range(120):
        for number in [each for each, at in due.items() if at <= step and turns[each] < 5]:
            due[number] = 10_000
            tenant = f"t{number % 2}"
            driver.add(turn(f"{number}.{turns[number]}", texts[number], tenant=tenant))
        if driver.scheduler.has_work:
            driver.step()
        else:
            driver.now += 1.0
        for number, count in turns.items():
            name = f"{number}.{count}"
            if due[number] == 10_000 and name in driver.finishes:
                calls_tools = draw(st.booleans())
                driver.scheduler.note_turn(name, driver.now, calls_tools=calls_tools)
                texts[number] = (*texts[number], *OUTPUTS, count, count)
                turns[number] += 1
                due[number] = step + draw(st.integers(0, 8))
    driver.run()
    waits = [each.timeline for each in driver.finishes.values()]
    for timeline in waits:
        held = [each for each in timeline if each.reason is Reason.WAITS_FOR_SESSIONS]
        admitted = [each for each in timeline if each.reason is Reason.ADMITTED]
        if held and admitted:
            assert admitted[0].time_s - held[0].time_s <= 6 * (LEAD_S + 30)


def test_a_held_request_is_not_held_back_by_small_ones() -> None:
    """A session goes on all the time, and new ones that need no kept block come with each step."""
    driver = roomy(2001, replace(ROOMY, max_num_seqs=4, max_model_len=4096))
    text = tuple(range(100, 300))
    serve(driver, turn("a", text, max_tokens=1), calls_tools=True)
    driver.add(another("long", 8, max_tokens=50))
    driver.step()
    driver.add(another("large", 3800))
    waited_s = 0
    while "large" not in dict(driver.admissions):
        waited_s += 1
        assert waited_s <= LEAD_S + 2
        driver.add(another(f"small {waited_s}", 4, max_tokens=1))
        if waited_s % 4 == 0:
            text = (*text, 7, waited_s)
            driver.add(turn(f"turn {waited_s}", text, max_tokens=1))
        driver.step()
        if f"turn {waited_s}" in driver.finishes:
            driver.scheduler.note_turn(f"turn {waited_s}", driver.now, calls_tools=True)
    assert waited_s >= 20


def test_what_is_kept_twice_for_a_session_counts_once() -> None:
    driver = roomy()
    for number in range(3):
        text = (number, *range(1, 200))
        serve(driver, turn(f"a{number}", text, retention_s=60.0, max_tokens=1), calls_tools=True)
    assert driver.scheduler.stats.num_kept_crowded_out == 0
    assert driver.scheduler.stats.num_blocks_kept == 300
