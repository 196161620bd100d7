"""The shortest of equal requests go first, but nobody is held back for longer than is bounded."""

from collections.abc import Iterator
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.expectations import shortest_first
from quire.scheduler.expectations.shortest_first import MAX_LATER_S, SLOWDOWN, later_s
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from tests.scheduler.pacing.test_pace import CONFIG, TimedDriver, request

SHORTEST = replace(CONFIG, queue_order=QueueOrder.SHORTEST, max_num_seqs=2, max_skips=0)
ONE = replace(SHORTEST, max_num_seqs=1)
FIXED = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])


def asked(
    name: str, num_prompt: int, max_tokens: int, tenant: str = "", priority: int = 0
) -> NewRequest:
    new = request(name, num_prompt, max_tokens, ttft_s=None)
    return replace(new, tenant=tenant, priority=priority)


def busy_driver(config: SchedulerConfig = ONE, *, caches_prefixes: bool = False) -> TimedDriver:
    """A driver that has learnt how long steps take, and runs a request for a while."""
    driver = TimedDriver(config=config, caches_prefixes=caches_prefixes)
    driver.learn()
    driver.add(asked("running", 40, 30))
    driver.step()
    return driver


def admitted(driver: TimedDriver) -> list[str]:
    return [each.request.id for step in driver.steps for each in step.new_requests]


def number_of(driver: TimedDriver, name: str, reason: Reason) -> int:
    events = driver.finishes[name].timeline
    return next((event.number for event in events if event.reason is reason), 0)


@pytest.mark.parametrize(
    ("order", "wanted"),
    [(QueueOrder.ARRIVAL, ["long", "short"]), (QueueOrder.SHORTEST, ["short", "long"])],
)
def test_the_shorter_of_two_goes_first_if_that_is_wanted(
    order: QueueOrder, wanted: list[str]
) -> None:
    driver = busy_driver(replace(ONE, queue_order=order))
    driver.add(asked("long", 40, 200))
    driver.step()
    driver.add(asked("short", 40, 5))
    driver.finish()
    assert admitted(driver) == ["running", *wanted]


def test_timelines_say_who_counts_as_later_and_who_was_let_by() -> None:
    driver = busy_driver()
    driver.add(asked("long", 40, 200))
    driver.step()
    driver.add(asked("short", 40, 5), asked("shorter", 40, 2))
    driver.finish()
    later = {name: number_of(driver, name, Reason.COUNTS_LATER) for name in driver.finishes}
    assert later["long"] > later["short"] > later["shorter"] > 0
    let_by = [e for e in driver.finishes["long"].timeline if e.reason is Reason.LET_BY]
    (event,) = let_by
    assert event.other == "short"
    assert driver.scheduler.stats.num_let_by == 2, "the short one has let the shorter one by"
    assert event.number == pytest.approx(later["long"] - later["short"], abs=1)


def test_what_others_compute_of_a_prompt_counts_as_computed() -> None:
    """The second of two prompts of one length begins like one that is being computed."""
    driver = busy_driver(SHORTEST, caches_prefixes=True)
    driver.add(prompted("first", 1, 1600))
    driver.add(prompted("other", 2, 1600), prompted("alike", 1, 1600))
    driver.finish()
    assert admitted(driver) == ["running", "first", "alike", "other"]
    let_by = [e for e in driver.finishes["other"].timeline if e.reason is Reason.LET_BY]
    assert [event.other for event in let_by] == ["alike"]


def test_prompts_that_are_cached_go_together() -> None:
    """Three families come in turn, the cache has no room for their prefixes together."""
    order = {}
    for queue_order in QueueOrder:
        config = replace(ONE, queue_order=queue_order)
        driver = TimedDriver(140, config, caches_prefixes=True)
        driver.learn()
        driver.add(asked("running", 40, 30))
        driver.step()
        for number in range(4):
            for family in (1, 2, 3):
                driver.add(prompted(f"{family}{number}", family, 1600, f"{family}{number}"))
        driver.finish()
        order[queue_order] = [name[0] for name in admitted(driver)[1:]]
        found = sum(finish.num_cached_tokens for finish in driver.finishes.values())
        assert (found > 9 * 1500) is (queue_order is QueueOrder.SHORTEST)
    assert order[QueueOrder.ARRIVAL] == list("123" * 4)
    assert order[QueueOrder.SHORTEST] == list("111122223333")


def prompted(name: str, family: int, num_shared: int, own: str = "") -> NewRequest:
    """A request whose prompt begins with `num_shared` tokens of its family."""
    first = crc32((own or name).encode())
    shared = tuple(range(family * 10_000, family * 10_000 + num_shared))
    return replace(asked(name, 1, 3), prompt_token_ids=(*shared, first, 1, 2, 3))


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from([1.0, 30.0, MAX_LATER_S]))
def test_a_request_counts_as_later_by_a_bounded_time(one: float, two: float, most: float) -> None:
    less, more = sorted([one, two])
    gap_s = later_s(more, most) - later_s(less, most)
    assert 0 <= gap_s <= SLOWDOWN * (more - less) + 1e-6
    assert later_s(more, most) < most


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, NewRequest]]:
    """Requests of all sizes, with the number of the step that they come before."""
    found = []
    for number in range(draw(st.integers(2, 12))):
        new = asked(
            f"r{number:02}",
            draw(st.sampled_from([4, 40, 400])),
            draw(st.sampled_from([1, 8, 60])),
            draw(st.sampled_from("ab")),
            draw(st.integers(0, 2)),
        )
        found.append((draw(st.integers(0, 20)), new))
    return found


def passed(driver: TimedDriver, news: dict[str, NewRequest]) -> Iterator[tuple[str, str]]:
    """Yield the names of each request that waited and of each that was admitted before it."""
    arrived = {name: finish.timeline[0].time_s for name, finish in driver.finishes.items()}
    began = admitted(driver)
    place = {name: began.index(name) for name in news}
    for one in news:
        for other in news:
            came_later = (arrived[one], one) < (arrived[other], other)
            waited_s = arrived[one] + driver.finishes[one].queue_s
            if came_later and place[other] < place[one] and arrived[other] < waited_s:
                yield one, other


def check_bounds(policy: PolicyName, ageing_s: float, crowd: list[tuple[int, NewRequest]]) -> None:
    config = replace(SHORTEST, scheduling_policy=policy, priority_ageing_s=ageing_s)
    driver = TimedDriver(config=config)
    driver.learn()
    news = {new.id: new for _, new in crowd}
    for number in range(21):
        driver.add(*(new for at, new in crowd if at == number))
        driver.step()
    driver.finish()
    assert set(news) <= set(driver.finishes), "nobody is held back for ever"
    for one, other in passed(driver, news):
        first, second = driver.finishes[one], driver.finishes[other]
        if first.num_preemptions or second.num_preemptions:
            continue
        if policy is PolicyName.FAIR and news[one].tenant != news[other].tenant:
            continue
        better = policy is PolicyName.PRIORITY and news[other].priority < news[one].priority
        if better:
            continue
        if policy is PolicyName.PRIORITY:
            assert news[one].priority == news[other].priority, "no class is left"
        gap_s = second.timeline[0].time_s - first.timeline[0].time_s
        saved_ms = number_of(driver, one, Reason.COUNTS_LATER) - number_of(
            driver, other, Reason.COUNTS_LATER
        )
        assert gap_s <= saved_ms / 1000 + 0.002
        assert gap_s < (ageing_s if policy is PolicyName.PRIORITY else MAX_LATER_S)


@given(st.sampled_from(PolicyName), st.sampled_from([0.05, 0.5, 30.0]), crowds())
def test_nobody_is_passed_by_longer_ones_or_ones_that_come_too_late(
    policy: PolicyName, ageing_s: float, crowd: list[tuple[int, NewRequest]]
) -> None:
    check_bounds(policy, ageing_s, crowd)


@pytest.mark.parametrize("policy", PolicyName)
def test_an_endless_stream_of_short_ones_does_not_hold_back_a_long_one(policy: PolicyName) -> None:
    config = replace(ONE, scheduling_policy=policy, priority_ageing_s=3.0)
    driver = busy_driver(config)
    driver.add(asked("long", 2000, 100))
    num_short = 0
    while "long" not in admitted(driver):
        while len([name for name in admitted(driver) if name[0] == "s"]) + 4 > num_short:
            driver.add(asked(f"s{num_short:04}", 10, 4))
            num_short += 1
        driver.step()
        assert num_short < 5000
    assert num_short > 20, "some go before it"


def counts_later_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_first, "later_s", lambda expected_s, most_s: 1e4 * expected_s)


def leaves_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortest_first, "later_s", lambda expected_s, most_s: SLOWDOWN * expected_s)


@pytest.mark.parametrize("plant", [counts_later_without_bound, leaves_its_class])
def test_planted_fault_is_caught(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)

    @FIXED
    @given(crowds())
    def laws(crowd: list[tuple[int, NewRequest]]) -> None:
        check_bounds(PolicyName.PRIORITY, 0.05, crowd)

    with pytest.raises(AssertionError):
        laws()
