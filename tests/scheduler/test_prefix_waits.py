"""Equal prompts that arrive together: one computes what they have in common, the others wait for it
where that is sooner. Nobody waits long, for one who is gone, or for what it could not use.
"""

from collections import defaultdict, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.sharing import OPEN, SharingTerms
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import CostModel, PreemptionMode
from quire.scheduler.policy import PolicyName
from quire.scheduler.prefix_waits import MAX_STEPS
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.step import Step
from tests.scheduler.driver import CONFIG, Driver, result_of

WAITS = replace(CONFIG, max_num_seqs=8, max_num_batched_tokens=64, max_num_queued_reqs=100)
STORY = tuple(range(100, 120))
"""Ten blocks, and nine that can be found: the last token is always computed."""


def prompt(
    name: str, *token_ids: int, max_tokens: int = 4, sharing: SharingTerms = OPEN
) -> NewRequest:
    return NewRequest(name, token_ids, Sampling(), Stopping(max_tokens), sharing)


def scheduled(step: Step) -> dict[str, tuple[int, int]]:
    return {chunk.request_id: (chunk.start, chunk.num_tokens) for chunk in step.chunks}


def reasons(driver: Driver, name: str) -> list[Reason]:
    return [event.reason for event in driver.finishes[name].timeline]


def desk_with(*news: NewRequest, config: SchedulerConfig = WAITS, num_blocks: int = 200) -> Driver:
    driver = Driver(config, num_blocks, caches_prefixes=True)
    for new in news:
        assert driver.add(new) is None
    return driver


def test_an_equal_prompt_waits_and_computes_its_tail_alone() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY))
    assert scheduled(driver.step()) == {"a": (0, 20)}
    assert driver.scheduler.stats.num_waiting_for_capacity == 0
    assert scheduled(driver.step()) == {"a": (20, 1), "b": (18, 2)}
    driver.run()
    waited = driver.finishes["b"].timeline[1]
    assert (waited.reason, waited.number, waited.other) == (Reason.WAITS_FOR_PREFIX, 18, "a")
    assert reasons(driver, "b")[1:4] == [
        Reason.WAITS_FOR_PREFIX,
        Reason.ADMITTED,
        Reason.FIRST_TOKEN,
    ]
    stats = driver.scheduler.stats
    assert (stats.num_prefix_waits, stats.num_prefix_hits) == (1, 18)


def test_a_burst_computes_a_prompt_once() -> None:
    names = [f"r{index}" for index in range(8)]
    driver = desk_with(*(prompt(name, *STORY, index) for index, name in enumerate(names)))
    assert list(scheduled(driver.step())) == ["r0"]
    step = driver.step()
    assert scheduled(step) == {"r0": (21, 1), **{name: (20, 1) for name in names[1:]}}
    assert driver.scheduler.stats.num_prefix_waits == 7


@pytest.mark.parametrize("switch", ["wait_for_prefix", "caches_prefixes"])
def test_without_it_all_compute_at_once(switch: str) -> None:
    config = replace(WAITS, wait_for_prefix=switch != "wait_for_prefix")
    driver = Driver(config, 200, caches_prefixes=switch != "caches_prefixes")
    for name in "ab":
        driver.add(prompt(name, *STORY))
    assert scheduled(driver.step()) == {"a": (0, 20), "b": (0, 20)}
    assert driver.scheduler.stats.num_prefix_waits == 0


def test_a_part_in_common_is_waited_for_and_the_rest_computed() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY[:9], *range(30)))
    assert scheduled(driver.step()) == {"a": (0, 20)}
    assert scheduled(driver.step()) == {"a": (20, 1), "b": (8, 31)}
    driver.run()
    assert driver.finishes["b"].timeline[1].number == 8


def test_it_waits_for_one_after_another_that_computes_more_of_its_prompt() -> None:
    news = [prompt(name, *STORY[: 4 + 4 * index]) for index, name in enumerate("abcd")]
    driver = desk_with(*news)
    assert [scheduled(driver.step()) for _ in range(2)] == [
        {"a": (0, 4)},
        {"a": (4, 1), "b": (4, 4)},
    ]
    driver.run()
    assert sum(new.stopping.max_tokens - 1 for new in news) + 16 == driver.num_computed


@pytest.mark.parametrize(
    "other",
    [
        prompt("b", *STORY, sharing=SharingTerms(b"salt")),
        prompt("b", *STORY, sharing=SharingTerms(adapter="x")),
        replace(prompt("b", *STORY), prompt_logprobs=0),
        prompt("b", 1, *STORY[1:]),
    ],
    ids=["salt", "adapter", "scored", "first token"],
)
def test_what_could_not_be_shared_is_not_waited_for(other: NewRequest) -> None:
    driver = desk_with(prompt("a", *STORY), other)
    assert scheduled(driver.step()) == {"a": (0, 20), "b": (0, 20)}


def test_a_scored_prompt_is_computed_for_others_too() -> None:
    driver = desk_with(replace(prompt("a", *STORY), prompt_logprobs=0), prompt("b", *STORY))
    assert scheduled(driver.step()) == {"a": (0, 20)}
    assert scheduled(driver.step())["b"] == (18, 2)


def test_the_public_part_is_waited_for_under_another_salt() -> None:
    driver = desk_with(
        prompt("a", *STORY, sharing=SharingTerms(b"one", 8)),
        prompt("b", *STORY, sharing=SharingTerms(b"two", 8)),
    )
    assert scheduled(driver.step()) == {"a": (0, 20)}
    assert scheduled(driver.step())["b"] == (8, 12)


def test_who_waits_goes_on_alone_when_the_other_is_aborted() -> None:
    driver = desk_with(prompt("a", *STORY), *(prompt(name, *STORY) for name in "bc"))
    step = driver.scheduler.schedule(1.0)
    assert scheduled(step) == {"a": (0, 20)}
    assert driver.scheduler.abort("a", 1.0) is not None
    step = driver.scheduler.schedule(2.0)
    assert scheduled(step) == {"b": (0, 20)}, "and c waits for b"


def test_who_waits_goes_on_alone_when_the_other_ends_without_a_number() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY))
    step = driver.scheduler.schedule(1.0)
    broken = replace(result_of(step), not_finite=frozenset("a"))
    driver.scheduler.update(step, broken, 1.0)
    assert scheduled(driver.scheduler.schedule(2.0)) == {"b": (0, 20)}


def test_who_waits_goes_on_alone_when_the_other_is_preempted() -> None:
    """`old` outgrows the pool while the result for `a` is under way, then `a` is first again."""
    driver = desk_with(prompt("old", *range(18), max_tokens=20), num_blocks=22)
    driver.step()
    for name in "ab":
        driver.add(prompt(name, *STORY))
    scheduler, under_way, timelines = (
        driver.scheduler,
        deque[Step](),
        defaultdict[str, list[Reason]](list),
    )
    for second in range(2, 60):
        under_way.append(scheduler.schedule(float(second)))
        driver.cache.check()
        if len(under_way) > 5:
            step = under_way.popleft()
            scheduler.update(step, result_of(step), float(second))
        for name, event in scheduler.take_events():
            timelines[name].append(event.reason)
    assert Reason.PREEMPTED_FOR_BLOCKS in timelines["a"]
    assert Reason.WAITS_FOR_PREFIX in timelines["b"]
    assert [timeline[-1] for timeline in timelines.values()] == [Reason.MAX_TOKENS] * 3
    assert not scheduler.has_work


def test_a_reset_ends_the_wait() -> None:
    """What is computed by then will not be found."""
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY))
    first = driver.scheduler.schedule(1.0)
    driver.scheduler.reset_prefix_cache()
    second = driver.scheduler.schedule(2.0)
    assert scheduled(second)["b"] == (0, 20)
    driver.scheduler.update(first, result_of(first), 3.0)
    driver.scheduler.update(second, result_of(second), 3.0)
    driver.cache.check()


def test_one_that_waits_may_be_aborted_or_run_out_of_time() -> None:
    driver = desk_with(
        prompt("a", *STORY),
        prompt("b", *STORY),
        replace(prompt("c", *STORY), time_limit_s=1.5),
    )
    step = driver.scheduler.schedule(1.0)
    assert driver.scheduler.abort("b", 1.0) is not None
    deltas = driver.scheduler.update(step, result_of(step), 2.0)
    assert [(delta.request_id, delta.finish is not None) for delta in deltas] == [
        ("a", False),
        ("c", True),
    ]
    assert driver.scheduler.stats.num_waiting == 0


def test_a_late_result_is_waited_for_too() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY))
    steps = [driver.scheduler.schedule(1.0), driver.scheduler.schedule(2.0)]
    assert list(map(scheduled, steps)) == [{"a": (0, 20)}, {"a": (20, 1)}]
    driver.scheduler.update(steps[0], result_of(steps[0]), 2.0)
    assert scheduled(driver.scheduler.schedule(3.0))["b"] == (18, 2)


def test_a_result_that_never_comes_is_not_waited_for_long() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY))
    for number in range(MAX_STEPS):
        assert "b" not in scheduled(driver.scheduler.schedule(float(number)))
    assert scheduled(driver.scheduler.schedule(99.0))["b"] == (0, 20)


def test_those_behind_pass_and_are_not_counted_as_skips() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY), prompt("c", 1, 2, 3))
    assert scheduled(driver.step()) == {"a": (0, 20), "c": (0, 3)}
    assert scheduled(driver.step()) == {"a": (20, 1), "c": (3, 1), "b": (18, 2)}


def test_who_passes_takes_no_token_of_the_next_step() -> None:
    driver = desk_with(prompt("a", *STORY), prompt("b", *STORY), prompt("c", *range(50)))
    assert scheduled(driver.step()) == {"a": (0, 20)}, "44 tokens are left"
    assert scheduled(driver.step()) == {"a": (20, 1), "b": (18, 2), "c": (0, 50)}


def test_who_passes_takes_no_sequence_and_no_block_of_those_who_wait() -> None:
    short = [prompt(name, ord(name)) for name in "cde"]
    driver = desk_with(
        prompt("a", *STORY),
        prompt("b", *STORY),
        *short,
        config=replace(WAITS, max_num_seqs=3),
    )
    assert list(scheduled(driver.step())) == ["a", "c"]
    first = prompt("a", *STORY, max_tokens=1)
    driver = desk_with(first, prompt("b", *STORY), *short, num_blocks=1 + 10 + 1 + 2)
    assert list(scheduled(driver.step())) == ["a", "c", "d"], "the last block is b's"
    assert "b" in scheduled(driver.step())


def test_a_queue_is_not_full_for_those_who_wait_for_a_prefix() -> None:
    driver = desk_with(
        *(prompt(name, *STORY) for name in "abcd"), config=replace(WAITS, max_num_queued_reqs=0)
    )
    driver.step()
    for name in "efgh":
        assert driver.add(prompt(name, *STORY)) is None
    refusal = driver.add(prompt("i", *STORY))
    assert refusal is not None and refusal.reason is Reason.QUEUE_FULL


def test_a_tenant_keeps_its_account_while_it_waits() -> None:
    fair = replace(WAITS, scheduling_policy=PolicyName.FAIR, max_num_seqs=2)
    driver = desk_with(replace(prompt("a", *STORY), tenant="x"), config=fair)
    for name in "bcd":
        driver.add(replace(prompt(name, *STORY), tenant="y"))
    driver.step()
    driver.run()
    assert [name for name, _ in driver.admissions] == ["a", "b", "c", "d"]
    assert driver.scheduler.stats.num_prefix_waits == 1


def known_cost(token_s: float, step_s: float) -> CostModel:
    cost = CostModel(PreemptionMode.AUTO)
    for num_tokens in (10, 500, 40, 300):
        cost.observe_step(num_tokens, step_s + num_tokens * token_s)
    return cost


@given(st.floats(1e-5, 1e-2), st.floats(1e-3, 1.0), st.integers(1, 2000), st.integers(1, 3))
def test_it_is_waited_for_where_the_tokens_take_longer_than_the_steps(
    token_s: float, step_s: float, num_tokens: int, num_steps: int
) -> None:
    computing, waiting = num_tokens * token_s, num_steps * step_s
    cost = known_cost(token_s, step_s)
    if abs(computing - waiting) > 1e-2 * (computing + waiting):
        assert cost.prefers_wait(num_tokens, num_steps) == (computing > waiting)


def test_a_short_prefix_is_computed_where_a_step_costs_more() -> None:
    """A step takes a second, and each of its tokens a hundredth: 18 of them are no reason to wait,
    unless the prompt cannot be done in this step anyway.
    """
    driver = Driver(WAITS, 200, caches_prefixes=True)
    scheduler, now = driver.scheduler, 0.0
    for index in range(6):
        driver.add(prompt(f"w{index}", *range(200, 210 + 9 * index), max_tokens=1))
        step = scheduler.schedule(now)
        now += 1.0 + 0.01 * step.num_tokens
        scheduler.update(step, result_of(step), now)
    for name in "ab":
        scheduler.add(prompt(name, *STORY), now)
    step = scheduler.schedule(now)
    assert scheduled(step) == {"a": (0, 20), "b": (0, 20)}
    now += 1.4
    scheduler.update(step, result_of(step), now)
    scheduler.add(prompt("long", *range(300, 360)), now)
    scheduler.add(prompt("longer", *range(300, 360)), now)
    step = scheduler.schedule(now)
    assert scheduled(step)["long"] == (0, 60) and "longer" not in scheduled(step)


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, NewRequest]]:
    """Arrivals by step; prompts are pieces of a few stories, each with an end of its own."""
    crowd = []
    for index in range(draw(st.integers(2, 16))):
        story = 100 * draw(st.integers(0, 1))
        length, own = draw(st.integers(0, 20)), draw(st.integers(1, 4))
        token_ids = (*range(story, story + length), *range(50, 50 + own))
        new = prompt(f"r{index:02}", *token_ids, max_tokens=draw(st.integers(1, 4)))
        new = replace(
            new,
            sharing=SharingTerms(draw(st.sampled_from([b"", b"x"]))),
            tenant=draw(st.sampled_from("ab")),
            priority=draw(st.integers(0, 2)),
        )
        crowd.append((draw(st.integers(0, 3)), new))
    return crowd


def play(config: SchedulerConfig, crowd: list[tuple[int, NewRequest]]) -> Driver:
    driver = Driver(config, 400, caches_prefixes=True)
    for step in range(4):
        for arrives, new in crowd:
            if arrives == step:
                assert driver.add(new) is None
        driver.step()
    driver.run(max_steps=400)
    return driver


def check_waits(config: SchedulerConfig, crowd: list[tuple[int, NewRequest]]) -> None:
    """None waits for one that waits too, no token more is computed, and the end is no later but for
    the bound of one's waits.
    """
    waits = play(config, crowd)
    for name, finish in waits.finishes.items():
        begin = next(
            (event for event in finish.timeline if event.reason is Reason.WAITS_FOR_PREFIX), None
        )
        if begin is None:
            continue
        other = waits.finishes[begin.other]
        joined_s = next(e.time_s for e in other.timeline if e.reason is Reason.ADMITTED)
        assert joined_s <= begin.time_s, f"{name} waits for one that waits"
    alone = play(replace(config, wait_for_prefix=False), crowd)
    assert waits.num_computed <= alone.num_computed
    assert waits.now <= alone.now + MAX_STEPS


configs = st.builds(
    lambda num_seqs, more, policy: replace(
        WAITS,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + more,
        scheduling_policy=policy,
    ),
    st.integers(1, 8),
    st.integers(0, 60),
    st.sampled_from(PolicyName),
)


@given(configs, crowds())
def test_waits_are_short_and_save_tokens(
    config: SchedulerConfig, crowd: list[tuple[int, NewRequest]]
) -> None:
    check_waits(config, crowd)
