"""Waiting requests take the places of running ones that are less urgent: of the worst priority
alone, as few as are needed, not for ever, and never of what a step has scheduled."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.cache.block_pool import AccountsError
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import PREEMPTIONS, Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Step
from quire.scheduler.step_draft import StepDraft
from quire.scheduler.urgency.urgency import MAX_TIMES, Urgency
from tests.scheduler.driver import CONFIG, Driver, request

PRIORITY = replace(CONFIG, scheduling_policy=PolicyName.PRIORITY, priority_ageing_s=1000.0)


def ranked(name: str, priority: int, num_prompt: int = 4, max_tokens: int = 4) -> NewRequest:
    return replace(request(name, num_prompt, max_tokens), priority=priority)


def given_up(driver: Driver, name: str) -> list[tuple[Reason, str]]:
    events = driver.finishes[name].timeline
    return [(event.reason, event.other) for event in events if event.reason in PREEMPTIONS]


def test_an_urgent_request_takes_the_place_of_the_worst() -> None:
    driver = Driver(PRIORITY, num_blocks=60)
    for name, priority in (("a", 2), ("b", 3), ("c", 1), ("d", 2)):
        driver.add(ranked(name, priority, max_tokens=20))
        driver.step()
    driver.add(ranked("urgent", 0, num_prompt=20))
    step = driver.step()
    assert step.finished_requests == ("b",)
    assert [each.request.id for each in step.new_requests] == ["urgent"]
    sizes = [(chunk.request_id, chunk.num_tokens) for chunk in step.chunks]
    assert sizes == [("urgent", 5), ("c", 1), ("a", 1), ("d", 1)]
    driver.run()
    assert given_up(driver, "b") == [(Reason.PREEMPTED_FOR_URGENT, "urgent")]
    thrown = [e.number for e in driver.finishes["b"].timeline if e.reason in PREEMPTIONS]
    assert thrown == [6]
    stats = driver.scheduler.stats
    assert (stats.num_preemptions, stats.num_urgent_preemptions) == (1, 1)


def test_an_urgent_prompt_goes_before_a_worse_one_that_is_begun() -> None:
    driver = Driver(PRIORITY, num_blocks=60)
    driver.add(ranked("worse", 3, num_prompt=30))
    driver.step()
    driver.add(ranked("urgent", 0, num_prompt=20))
    sizes = [(each.request_id, each.num_tokens) for each in driver.step().chunks]
    assert sizes == [("urgent", 7), ("worse", 1)]
    driver.run()
    assert driver.scheduler.stats.num_preemptions == 0


def test_no_prompt_goes_before_one_that_was_ahead_in_the_queue() -> None:
    """Of two that have waited unequally long: so no stream of urgent ones holds a prompt back."""
    driver = Driver(replace(PRIORITY, priority_ageing_s=1.0), num_blocks=60)
    driver.add(ranked("worse", 3, num_prompt=64 - 4))
    for _ in range(4):
        driver.step()
    driver.add(ranked("urgent", 0, num_prompt=20))
    assert [(each.request_id, each.num_tokens) for each in driver.step().chunks] == [("worse", 8)]
    driver.run()


def test_its_place_is_kept_by_one_of_equal_priority_however_long_others_have_waited() -> None:
    driver = Driver(replace(PRIORITY, max_num_seqs=1, priority_ageing_s=1.0))
    driver.add(ranked("a", 0, max_tokens=30))
    driver.step()
    driver.add(ranked("b", 0))
    driver.run()
    assert driver.scheduler.stats.num_preemptions == 0


def test_the_number_counts_and_not_how_long_the_other_has_waited() -> None:
    """By the aged key, which orders the queue, the one that runs would be ahead by far."""
    driver = Driver(replace(PRIORITY, max_num_seqs=1, priority_ageing_s=1.0))
    driver.add(ranked("old", 5, max_tokens=30))
    for _ in range(20):
        driver.step()
    driver.add(ranked("urgent", 4))
    assert driver.step().finished_requests == ("old",)
    driver.run()
    assert given_up(driver, "old") == [(Reason.PREEMPTED_FOR_URGENT, "urgent")]


@pytest.mark.parametrize(
    ("num_prompt", "victims"), [(6, ["small"]), (16, ["large"]), (22, ["large", "small"])]
)
def test_as_few_go_as_free_the_blocks(num_prompt: int, victims: list[str]) -> None:
    """16 tokens fit beside the best, 5 blocks are left to grow."""
    config = replace(PRIORITY, max_num_batched_tokens=64)
    driver = Driver(config, num_blocks=20)
    for name, priority, size in (("best", 0, 4), ("large", 2, 18), ("small", 3, 8)):
        driver.add(ranked(name, priority, size, 12))
    driver.step()
    driver.add(ranked("urgent", 1, num_prompt, 2))
    gone = set[str]()
    while "urgent" in driver.waiting:
        gone.update(driver.step().finished_requests)
    assert sorted(gone) == victims


def test_nobody_goes_where_all_together_free_too_little() -> None:
    driver = Driver(replace(PRIORITY, max_num_batched_tokens=64), num_blocks=20)
    driver.add(ranked("best", 0, 20, 12))
    driver.add(ranked("worse", 2, 8, 12))
    driver.step()
    driver.add(ranked("urgent", 1, 30, 2))
    while "best" not in driver.finishes:
        driver.step()
    assert driver.scheduler.stats.num_urgent_preemptions == 0
    driver.run()


def test_blocks_that_the_urgent_one_would_find_are_not_counted() -> None:
    """The worse one holds 9 blocks, 7 of which the urgent one shares."""
    config = replace(PRIORITY, max_num_batched_tokens=64)
    driver = Driver(config, num_blocks=16, caches_prefixes=True)
    worse = ranked("w", 2, 16, 12)
    driver.add(ranked("best", 0, 10, 12))
    driver.add(worse)
    driver.step()
    prompt = (*worse.prompt_token_ids[:14], *range(100, 112))
    driver.add(replace(ranked("u", 1, 4, 2), prompt_token_ids=prompt))
    while "best" not in driver.finishes:
        driver.step()
    assert driver.scheduler.stats.num_urgent_preemptions == 0
    driver.run()


def tight(num_seqs: int, num_blocks: int, num_groups: int) -> Driver:
    config = replace(PRIORITY, max_num_seqs=num_seqs, max_num_batched_tokens=64)
    return Driver(config, num_blocks, num_groups=num_groups)


def test_a_block_is_left_to_each_that_runs() -> None:
    """The six blocks of the worst are enough for the urgent one, but both others grow too."""
    driver = tight(3, 11, 1)
    for name, priority, num_prompt in (("x", 0, 4), ("y", 0, 4), ("low", 5, 12)):
        driver.add(ranked(name, priority, num_prompt))
    driver.step()
    driver.add(ranked("urgent", 1, 12, 2))
    driver.run()
    assert given_up(driver, "low")[0] == (Reason.PREEMPTED_FOR_BLOCKS, "x")


def test_who_has_just_been_admitted_is_not_taken_back() -> None:
    """Two groups of layers: `y` lacks a block when it grows, and the last of all is `urgent`."""
    driver = tight(3, 20, 2)
    for name, priority, num_prompt in (("x", 0, 4), ("y", 0, 4), ("low", 5, 10)):
        driver.add(ranked(name, priority, num_prompt, 8))
    driver.step()
    driver.add(ranked("urgent", 1, 8, 2))
    step = driver.step()
    assert step.finished_requests == ("low", "y")
    assert [chunk.request_id for chunk in step.chunks] == ["urgent", "x"]
    driver.run()


def test_the_first_of_all_waits_a_step_and_goes_on() -> None:
    """Three groups of layers: `x` lacks a block when it grows."""
    driver = tight(2, 21, 3)
    driver.add(ranked("x", 0, 4, 4))
    driver.add(ranked("low", 5, 8, 4))
    driver.step()
    driver.add(ranked("urgent", 1, 8, 2))
    step = driver.step()
    assert step.finished_requests == ("low",)
    assert [chunk.request_id for chunk in step.chunks] == ["urgent"]
    assert driver.step().chunks[0].request_id == "x"
    driver.run()
    assert given_up(driver, "x") == []


@pytest.mark.parametrize("mode", PreemptionMode)
def test_the_host_keeps_what_is_cheaper_to_copy(mode: PreemptionMode) -> None:
    config = replace(PRIORITY, max_num_seqs=1, preemption_mode=mode)
    driver = Driver(config, num_host_blocks=30)
    driver.add(ranked("a", 1, 4, 9))
    driver.step()
    driver.add(ranked("urgent", 0))
    driver.run()
    is_swapped = mode is not PreemptionMode.RECOMPUTE
    reason = Reason.SWAPPED_OUT if is_swapped else Reason.PREEMPTED_FOR_URGENT
    assert given_up(driver, "a") == [(reason, "urgent")]
    stats = driver.scheduler.stats
    assert stats.num_urgent_preemptions == 1 and stats.num_urgent_swaps == is_swapped


def test_no_place_is_taken_of_whom_a_request_forks() -> None:
    """Alone the urgent one would need all the blocks that go with the other, and two that are left
    to those that run."""
    driver = Driver(replace(PRIORITY, max_num_batched_tokens=64), num_blocks=9)
    source = ranked("source", 5, 7)
    for new in (ranked("x", 0, 3), ranked("y", 0, 3), source):
        driver.add(new)
    driver.step()
    driver.add(replace(source, id="fork", priority=1, fork_of="source"))
    while "source" not in driver.waiting:
        driver.step()
    driver.run()
    assert given_up(driver, "source")[0] == (Reason.PREEMPTED_FOR_BLOCKS, "x")


@pytest.mark.parametrize("max_num_seqs", [1, 2, 4])
def test_a_request_gives_its_place_so_often_and_then_keeps_it(max_num_seqs: int) -> None:
    """Urgent ones come whenever it runs again."""
    driver = Driver(replace(PRIORITY, max_num_seqs=max_num_seqs), num_blocks=80)
    for index in range(max_num_seqs):
        driver.add(ranked(f"patient{index}", 5, 2, 30))
    for number in range(12):
        for _ in range(6):
            driver.step()
        for index in range(max_num_seqs):
            driver.add(ranked(f"u{number}.{index}", 0, 2, 2))
    driver.run()
    times = [len(given_up(driver, f"patient{index}")) for index in range(max_num_seqs)]
    assert max(times) == MAX_TIMES


@pytest.mark.parametrize("max_num_seqs", [1, 2, 4])
def test_a_stream_of_urgent_ones_holds_nobody_back(max_num_seqs: int) -> None:
    """More than are served; after 20 steps the other counts as one of them."""
    driver = Driver(replace(PRIORITY, max_num_seqs=max_num_seqs, priority_ageing_s=4.0))
    driver.add(ranked("patient", 5, 4, 8))
    for number in range(100 + 40 * max_num_seqs):
        for index in range(max_num_seqs):
            driver.add(ranked(f"u{number}.{index}", 0, 2, 3))
        driver.step()
    assert 1 <= len(given_up(driver, "patient")) <= MAX_TIMES


class Crowd(NamedTuple):
    """Limits, blocks of the device and host, groups of layers, and who comes when."""

    config: SchedulerConfig
    num_blocks: int
    num_host_blocks: int
    num_groups: int
    news: list[tuple[int, NewRequest]]
    caches_prefixes: bool = True


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    max_num_seqs = draw(st.sampled_from([1, 2, 4, 8]))
    config = replace(
        CONFIG,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12)),
        max_skips=draw(st.integers(0, 3)),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        scheduling_policy=draw(st.sampled_from([PolicyName.PRIORITY, PolicyName.FAIR])),
        priority_ageing_s=draw(st.sampled_from([0.5, 5.0, 1000.0])),
        preemption_mode=draw(st.sampled_from(PreemptionMode)),
    )
    crowd: list[tuple[int, NewRequest]] = []
    length = draw(st.integers(15, 30))
    for index in range(draw(st.sampled_from([0, max_num_seqs, max_num_seqs]))):  # all places
        new = replace(ranked(f"h{index}", 3, 4, length), tenant="hog")
        crowd.append((0, new))
    for index in range(draw(st.integers(2, 16))):
        new = ranked(
            f"r{index:02}",
            draw(st.integers(-3, 3)),
            draw(st.integers(1, 14)),
            draw(st.integers(1, 14)),
        )
        shares_prefix = draw(st.booleans())
        prompt = (*range(len(new.prompt_token_ids)),) if shares_prefix else new.prompt_token_ids
        tenant, weight = draw(st.sampled_from([("a", 1.0), ("b", 1.0), ("c", 4.0)]))
        new = replace(new, prompt_token_ids=prompt, tenant=tenant, weight=weight)
        if crowd and draw(st.integers(0, 3)) == 0:
            source = draw(st.sampled_from(crowd))[1]
            new = replace(new, prompt_token_ids=source.prompt_token_ids, fork_of=source.id)
        crowd.append((draw(st.integers(0, 20)), new))
    num_groups = draw(st.sampled_from([1, 1, 2, 3]))
    num_blocks = num_groups * draw(st.integers(18, 60) | st.just(140))
    num_host_blocks, caches = draw(st.sampled_from([0, 20])), draw(st.booleans())
    return Crowd(config, num_blocks, num_host_blocks, num_groups, crowd, caches)


class WatchedDriver(Driver):
    """Notes who gave its place to whom, and checks each step."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(
            crowd.config,
            crowd.num_blocks,
            caches_prefixes=crowd.caches_prefixes,
            num_host_blocks=crowd.num_host_blocks,
            num_groups=crowd.num_groups,
        )
        self.config = crowd.config
        self.taken: list[tuple[str, str]] = []

    def step(self) -> Step:
        num_before = self.scheduler.stats.num_urgent_preemptions
        step = super().step()
        in_step = [chunk.request_id for chunk in step.chunks]
        assert len(set(in_step)) == len(in_step)
        assert step.num_tokens <= self.config.max_num_batched_tokens
        num_urgent = self.scheduler.stats.num_urgent_preemptions - num_before
        joined = {each.request.id for each in step.new_requests}
        events = self.scheduler.take_events()
        takers = [e.other for _, e in events if e.reason in PREEMPTIONS and e.other in joined]
        assert len(takers) == num_urgent, "who gets a place begins in the same step"
        for name, event in events:
            if event.reason in PREEMPTIONS:
                assert name not in in_step, "nothing scheduled is taken back"
                if event.other in joined:
                    self.taken.append((name, event.other))
        return step


def check_crowd(crowd: Crowd) -> int:
    """Return how many places were taken."""
    config, driver = crowd.config, WatchedDriver(crowd)
    for number in range(21):
        for arrives, new in crowd.news:
            if arrives == number:
                driver.add(new)
        driver.step()
    driver.run()
    assert len(driver.finishes) == len(driver.news)
    assert max(Counter(victim for victim, _ in driver.taken).values(), default=0) <= MAX_TIMES
    for victim, taker in driver.taken:
        if config.scheduling_policy is PolicyName.PRIORITY:
            assert driver.news[victim].priority > driver.news[taker].priority
        else:
            assert driver.news[victim].tenant != driver.news[taker].tenant
    return len(driver.taken)


@given(crowds())
def test_any_crowd_ends_and_gives_way_a_few_times_to_the_more_urgent(crowd: Crowd) -> None:
    check_crowd(crowd)


def takes_the_place_of_whom_it_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quire.scheduler.urgency.urgency._may_go",
        lambda running, _claimant: running.num_urgent < MAX_TIMES,
    )


def takes_all_who_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Urgency, "fewest", lambda _urgency, claim, _blocker: claim.candidates)


def takes_places_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.urgency.urgency.MAX_TIMES", 1 << 30)


def takes_places_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "quire.scheduler.urgency.urgency._worse", lambda _claimant, running: running
    )


def keeps_no_token_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        StepDraft,
        "num_kept",
        property(lambda _draft: 0, lambda _draft, _value: None),
        raising=False,
    )


def passes_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Urgency, "_passes", lambda _urgency, _claimant, _running: True)


@settings(max_examples=1000, derandomize=True, database=None, phases=[Phase.generate])
@given(crowds())
def any_crowd(crowd: Crowd) -> None:
    check_crowd(crowd)


@pytest.mark.parametrize(
    ("plant", "law"),
    [
        (takes_all_who_are_worse, lambda: test_as_few_go_as_free_the_blocks(6, ["small"])),
        (takes_places_without_end, any_crowd),
        (takes_places_of_equals, any_crowd),
        (takes_the_place_of_whom_it_forks, test_no_place_is_taken_of_whom_a_request_forks),
        (keeps_no_token_for_others, test_an_urgent_request_takes_the_place_of_the_worst),
        (passes_all_prompts, test_no_prompt_goes_before_one_that_was_ahead_in_the_queue),
    ],
)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    law: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError)):
        law()


def test_such_crowds_take_places() -> None:
    num_taken = Counter[PolicyName]()

    @settings(max_examples=200, derandomize=True, database=None, phases=[Phase.generate])
    @given(crowds())
    def count(crowd: Crowd) -> None:
        num_taken[crowd.config.scheduling_policy] += check_crowd(crowd)

    count()
    assert num_taken[PolicyName.PRIORITY] > 20 and num_taken[PolicyName.FAIR] > 2, num_taken
