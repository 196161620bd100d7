"""Who comes first under each policy, and that nobody waits for ever.

The bounds: nobody is passed by more than `max_skips` requests that come behind it. By arrival, that
is the bound. By priority, those come ahead that arrive before `ageing_s` times the difference has
gone by. By tenant, two who both wait are served alike, up to what can be in flight.

The planted faults at the end are each caught by one of the properties.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.scheduler.admission import Admission
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Request
from quire.scheduler.shares import Shares
from tests.scheduler.driver import BLOCK_SIZE, CONFIG, Driver, request

FCFS = CONFIG
PRIORITY = replace(CONFIG, scheduling_policy=PolicyName.PRIORITY, priority_ageing_s=4.0)
FAIR = replace(CONFIG, scheduling_policy=PolicyName.FAIR)
FIXED = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 4))
    return replace(
        CONFIG,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12)),
        max_skips=draw(st.integers(0, 3)),
        scheduling_policy=draw(st.sampled_from(PolicyName)),
        priority_ageing_s=draw(st.sampled_from([1.0, 5.0, 1000.0])),
    )


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, str, int]]:
    """Arrivals of small and large: step, tenant, priority; the sizes are in the requests."""
    return draw(
        st.lists(
            st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.integers(0, 3)),
            min_size=2,
            max_size=24,
        )
    )


def check_passing(config: SchedulerConfig, crowd: list[tuple[int, str, int]]) -> None:
    driver = Driver(config, num_blocks=12)
    for step in range(13):
        for index, (arrives, tenant, priority) in enumerate(crowd):
            if arrives == step:
                new = request(f"r{index:02}", 2 + 14 * (index % 3 == 1), 1 + index % 5)
                driver.add(replace(new, tenant=tenant, priority=priority))
        driver.step()
    driver.run()
    most = max(Counter(times_passed(driver, config)).values(), default=0)
    assert most <= config.max_skips


def times_passed(driver: Driver, config: SchedulerConfig) -> list[str]:
    """Each time that someone was admitted before one who comes ahead and waited, but for whom it
    has made room."""

    def priority_key(name: str) -> float:
        if config.scheduling_policy is not PolicyName.PRIORITY:
            return 0.0
        return driver.news[name].priority + driver.arrived_s[name] / config.priority_ageing_s

    order = {name: place for place, name in enumerate(driver.news)}
    by_tenant = config.scheduling_policy is PolicyName.FAIR
    return [
        name
        for joined, waiting in driver.admissions
        for name in waiting
        if (priority_key(name), order[name]) < (priority_key(joined), order[joined])
        and not (by_tenant and driver.news[name].tenant != driver.news[joined].tenant)
        and not any(
            event.reason is Reason.PREEMPTED_FOR_URGENT and event.other == joined
            for event in driver.finishes[name].timeline
        )
    ]


@given(configs(), crowds())
def test_nobody_is_passed_more_often_than_allowed(
    config: SchedulerConfig, crowd: list[tuple[int, str, int]]
) -> None:
    check_passing(config, crowd)


def stream_of_better(config: SchedulerConfig, num_steps: int) -> Driver:
    """One of priority 3 among ones of priority 0 that come faster than they are served."""
    driver = Driver(replace(config, max_num_seqs=1))
    driver.add(request("first"))
    driver.step()
    driver.add(replace(request("patient"), priority=3))
    for step in range(num_steps):
        driver.add(request(f"s{step}"))
        driver.step()
    return driver


def test_by_priority_ageing_brings_everyone_to_the_front() -> None:
    driver = stream_of_better(PRIORITY, 100)
    joined = [name for name, _ in driver.admissions]
    wait_s = 3 * PRIORITY.priority_ageing_s
    ahead = [n for n, at in driver.arrived_s.items() if at < driver.arrived_s["patient"] + wait_s]
    assert joined.index("patient") == len(ahead) - 1


def stream_of_small(config: SchedulerConfig) -> Driver:
    """One that needs all blocks among small ones that always fit."""
    driver = Driver(config, num_blocks=9)
    driver.add(request("s", 2, 6))
    driver.step()
    driver.add(request("large", 14, 2))
    for step in range(60):
        driver.add(request(f"s{step}", 2, 6))
        driver.step()
    return driver


@pytest.mark.parametrize("policy", PolicyName)
def test_small_ones_pass_a_large_one_so_often_and_then_it_goes_first(policy: PolicyName) -> None:
    driver = stream_of_small(replace(CONFIG, scheduling_policy=policy, max_skips=5))
    joined = [name for name, _ in driver.admissions]
    assert joined.index("large") == 1 + 5


@pytest.mark.parametrize(("num_large", "passes"), [(4, True), (5, False)])
def test_a_few_behind_one_that_lacks_blocks_are_tried(num_large: int, passes: bool) -> None:
    """Four in a step, so that a long queue costs no more."""
    driver = Driver(replace(CONFIG, max_skips=5), num_blocks=9)
    driver.add(request("first", 4, 6))
    driver.step()
    for number in range(num_large):
        driver.add(request(f"large{number}", 14, 2))
    driver.add(request("small", 2, 2))
    assert [each.request.id for each in driver.step().new_requests] == ["small"] * passes


def test_those_held_back_are_told_for_whom() -> None:
    driver = stream_of_small(replace(CONFIG, max_skips=5))
    driver.run()
    event = driver.finishes["s6"].timeline[1]
    assert event[1:] == (Reason.WAITS_FOR_SKIPPED, 5, "large")


def test_one_queued_is_told_how_many_are_ahead_and_behind_whom() -> None:
    driver = Driver(PRIORITY)
    for name, priority in (("a", 0), ("c", 2), ("b", 1)):
        driver.add(replace(request(name), priority=priority))
    driver.run()
    told = {name: finish.timeline[0][2:] for name, finish in driver.finishes.items()}
    assert told == {"a": (0, ""), "c": (1, "a"), "b": (1, "a")}


@pytest.mark.parametrize(
    ("config", "victim", "taker"), [(FCFS, "c", "a"), (PRIORITY, "b", "c"), (FAIR, "b", "a")]
)
def test_the_victim_is_the_last_in_order_or_of_the_tenant_served_most(
    config: SchedulerConfig, victim: str, taker: str
) -> None:
    """Three that grow at once: by priority b is last, by tenant b has been served most."""
    driver = Driver(replace(config, max_num_batched_tokens=32), num_blocks=8)
    for name, num_prompt, priority in (("a", 4, 1), ("b", 6, 2), ("c", 4, 0)):
        driver.add(replace(request(name, num_prompt, 6), tenant=name, priority=priority))
    driver.step()
    assert driver.step().finished_requests == (victim,)
    driver.run()
    events = driver.finishes[victim].timeline
    (event,) = [e for e in events if e.reason is Reason.PREEMPTED_FOR_BLOCKS]
    assert event.other == taker


class Rivalry(NamedTuple):
    """Limits, blocks of the host, prompts and outputs, weights and targets of two tenants, and how
    long the second is idle at first."""

    config: SchedulerConfig
    num_host_blocks: int
    sizes: list[int]
    weights: dict[str, float]
    targets_s: dict[str, float | None]
    idle_steps: int


@st.composite
def rivals(draw: st.DrawFn) -> Rivalry:
    max_num_seqs = draw(st.integers(1, 4))
    config = replace(
        FAIR,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12) | st.just(40)),
        preemption_mode=draw(st.sampled_from(PreemptionMode)),
    )
    sizes = draw(st.lists(st.integers(1, 10), min_size=2, max_size=8))
    weights = {name: draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])) for name in "ab"}
    targets_s = {name: draw(st.sampled_from([None, None, 0.1, 5.0, 60.0])) for name in "ab"}
    idle_steps, num_host_blocks = draw(st.sampled_from([0, 3, 60])), draw(st.sampled_from([0, 20]))
    return Rivalry(config, num_host_blocks, sizes, weights, targets_s, idle_steps)


def check_gap(rivalry: Rivalry) -> None:
    """While both wait, neither is served more than the other by over twice the largest prompt or
    the price of all that fits, whichever is more.
    """
    config, num_host_blocks, sizes, weights, targets_s, idle_steps = rivalry
    driver = Driver(config, num_blocks=16, num_host_blocks=num_host_blocks)
    bound = max(max(sizes), 2 * 15 * BLOCK_SIZE) / min(weights.values())
    began: dict[str, float] = {}
    for step in range(idle_steps + 120):
        backlogged = "ab" if step >= idle_steps else "a"
        for tenant in backlogged:
            keep_waiting(driver, tenant, weights[tenant], sizes, targets_s[tenant])
        if step == idle_steps:
            began = dict(driver.served)
        driver.step()
        if began or step >= idle_steps:
            a, b = (driver.served[name] - began.get(name, 0.0) for name in "ab")
            assert abs(a - b) <= 2 * bound


def keep_waiting(
    driver: Driver, tenant: str, weight: float, sizes: list[int], target_s: float | None = None
) -> None:
    """More requests of the tenant than one step can admit."""
    num_waiting = sum(driver.news[name].tenant == tenant for name in driver.waiting)
    for _ in range(num_waiting, CONFIG.max_num_seqs + 1):
        number = len(driver.news)
        num_prompt, max_tokens = sizes[number % len(sizes)], sizes[number // 2 % len(sizes)]
        new = request(f"{tenant}{number}", num_prompt, max_tokens)
        new = replace(new, target_ttft_s=target_s, target_itl_s=target_s)
        driver.add(replace(new, tenant=tenant, weight=weight))


@given(rivals())
def test_tenants_who_both_wait_are_served_alike_by_weight(
    rivalry: Rivalry,
) -> None:
    check_gap(rivalry)


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    driver = Driver(replace(FAIR, max_num_seqs=1))
    for index in range(50):
        driver.add(replace(request(f"f{index}"), tenant="flood"))
    driver.step()
    driver.add(replace(request("quiet"), tenant="quiet"))
    driver.run()
    assert [name for name, _ in driver.admissions].index("quiet") <= 2


def test_tenants_who_come_once_do_not_tilt_the_shares_of_those_who_stay() -> None:
    """More of them than there are counters kept."""
    driver = Driver(replace(FAIR, max_num_seqs=1))
    for index in range(1500):
        for name in "ab":
            keep_waiting(driver, name, 1.0, [2, 2])
        driver.add(replace(request(f"once{index}", 2, 1), tenant=f"once{index}"))
        driver.step()
    assert len(driver.served) > 300
    assert abs(driver.served["a"] - driver.served["b"]) <= 6


def test_a_drawn_token_costs_as_much_as_two_of_a_prompt() -> None:
    """Of two tenants whose requests cost the same, one by prompts and one by outputs, as many are
    served.
    """
    driver = Driver(replace(FAIR, max_num_seqs=1), num_blocks=64)
    for index in range(20):
        driver.add(replace(request(f"p{index:02}", 16, 1), tenant="prompts"))
        driver.add(replace(request(f"o{index:02}", 2, 8), tenant="outputs"))
    while len(driver.admissions) < 20:
        driver.step()
    joined = Counter(driver.news[name].tenant for name, _ in driver.admissions)
    assert abs(joined["prompts"] - joined["outputs"]) <= 1


def test_accounts_of_tenants_who_come_once_are_swept_now_and_then() -> None:
    """Not in each step, which would cost as much as there are tenants."""
    shares = Shares()
    for index in range(1000):
        shares.enter(f"t{index}", float(index))
    assert len(shares) == 1000
    for index in range(1000, 10_000):
        shares.enter(f"t{index}", float(index))
    assert len(shares) <= 2048


def test_a_prefix_hit_is_not_charged() -> None:
    """Of two tenants alike, the one whose prompts are cached gets more of them computed."""
    driver = Driver(replace(FAIR, max_num_seqs=1), num_blocks=64, caches_prefixes=True)
    for index in range(12):
        same = request(f"s{index}", 16, 1)
        same = replace(same, prompt_token_ids=tuple(range(16)), tenant="same")
        driver.add(same)
        driver.add(replace(request(f"n{index}", 16, 1), tenant="new"))
    for _ in range(12):
        driver.step()
    served = Counter(driver.news[name].tenant for name, _ in driver.admissions)
    assert served["same"] > served["new"] + 2


def gives_credit_for_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Shares, "enter", lambda shares, tenant, _least: shares._served.setdefault(tenant, 0.0)
    )


def forgets_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Shares.charge_outputs

    def light(shares: Shares, request: Request, num_tokens: int) -> None:
        charge(shares, request, num_tokens * int(request.new.weight))

    monkeypatch.setattr(Shares, "charge_outputs", light)


def skips_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "holds_back", lambda _admission, _request: False)


@pytest.mark.parametrize(
    "plant", [gives_credit_for_idleness, forgets_the_weights, skips_without_end]
)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    @FIXED
    @given(configs(), crowds(), rivals())
    def laws(
        config: SchedulerConfig,
        crowd: list[tuple[int, str, int]],
        rivalry: Rivalry,
    ) -> None:
        check_passing(config, crowd)
        check_gap(rivalry)

    with pytest.raises(AssertionError):
        laws()
