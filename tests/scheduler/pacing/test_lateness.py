"""Requests with targets for their first token: as many as can be are in time, and the others come
all the same."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from quire.cache.block_table import BlockTable
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.pacing.lateness import UNDERCUT, PromptSpeed, late_requests
from quire.scheduler.queue import LATE_SHARE, LEAST_LATE, WaitingQueue
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request, Sampling, Stopping
from quire.scheduler.shares import Shares
from quire.scheduler.step_draft import StepDraft
from tests.scheduler.pacing.test_pace import BUDGET, CLOSE, TimedDriver, prompt_tokens, request

RATE = 1000.0
SPEED = PromptSpeed(0.0, RATE)


def table() -> BlockTable:
    return KVCache(CacheConfig(2, 2)).open_table()


def waiting(name: str, num_tokens: int, target_s: float | None) -> Request:
    new = NewRequest(name, (1,) * num_tokens, Sampling(), Stopping(4), target_ttft_s=target_s)
    return Request(new, table(), [1] * num_tokens, "", (0.0, int(name)))


def in_time(chosen: tuple[Request, ...]) -> bool:
    num_tokens = 0
    for each in chosen:
        num_tokens += len(each.token_ids)
        assert each.new.target_ttft_s is not None
        if num_tokens / RATE > UNDERCUT * each.new.target_ttft_s:
            return False
    return True


@given(st.lists(st.tuples(st.integers(1, 900), st.floats(0.01, 2.0)), max_size=7))
def test_as_many_as_can_be_are_in_time(asked: list[tuple[int, float]]) -> None:
    by_target = sorted(asked, key=lambda each: each[1])
    queue = [waiting(str(number), *each) for number, each in enumerate(by_target)]
    late = [each.request for each in late_requests(queue, SPEED)]
    kept = tuple(each for each in queue if each not in late)
    assert in_time(kept)
    most = max(
        size
        for size in range(len(queue) + 1)
        if any(in_time(chosen) for chosen in combinations(queue, size))
    )
    assert len(kept) == most


def test_who_has_no_target_or_is_late_already_is_not_looked_at() -> None:
    queue = [waiting("1", 5000, None), waiting("2", 900, 1.0), waiting("3", 5000, 1.0)]
    queue[2].is_late = True
    assert late_requests(queue, SPEED) == []
    (late,) = late_requests(queue, PromptSpeed(0.5, RATE))
    assert late.request is queue[1] and late.seconds == pytest.approx(0.5)


def busy_driver(pair_s: float = 0.0) -> TimedDriver:
    """A driver that knows how fast prompts go while others wait."""
    driver = TimedDriver(pair_s=pair_s)
    for number in range(8):
        driver.add(request(f"learn{number}", 400, 2))
    driver.finish()
    driver.steps.clear()
    return driver


def first_chunks(driver: TimedDriver) -> list[str]:
    return [each.request.id for step in driver.steps for each in step.new_requests]


def test_a_long_prompt_lets_those_by_that_would_be_late() -> None:
    driver = busy_driver()
    driver.add(request("a", 200, 2, ttft_s=1.0))
    driver.step()
    driver.add(request("long", 6000, 2, ttft_s=1.0), request("b", 200, 2, ttft_s=1.0))
    driver.finish()
    assert first_chunks(driver) == ["a", "b", "long"]
    (late,) = [e for e in driver.finishes["long"].timeline if e.reason is Reason.LATE]
    assert late.number > 4000
    assert driver.scheduler.stats.num_ttft_missed == 1


def test_late_ones_are_not_held_back_for_ever() -> None:
    driver = busy_driver()
    driver.add(request("a", 200, 2, ttft_s=0.3), request("late", 2000, 2, ttft_s=0.3))
    num_added, num_tokens = 0, 100
    while "late" not in first_chunks(driver):
        while num_added < 2 + driver.now / 0.09:
            driver.add(request(f"next{num_added}", num_tokens, 2, ttft_s=0.3))
            num_added += 1
        driver.step()
        assert num_added < 1000
    num_passed = sum(name.startswith("next") for name in first_chunks(driver))
    assert num_passed * num_tokens * LATE_SHARE <= num_tokens + 200
    driver.finish()
    assert "late" in driver.finishes


def late_driver(num_tokens: int, pair_s: float = 0.0) -> TimedDriver:
    """A driver that has begun a prompt which is late."""
    driver = busy_driver(pair_s)
    driver.add(request("late", num_tokens, 2, ttft_s=0.1))
    driver.step()
    assert first_chunks(driver) == ["late"]
    return driver


def test_a_late_prompt_that_has_begun_lets_others_by() -> None:
    driver = late_driver(6000)
    num_added = 0
    while "late" not in driver.finishes:
        if driver.now > 0.3 * num_added:
            driver.add(request(f"next{num_added}", 150, 2, ttft_s=0.8))
            num_added += 1
        driver.step()
    driver.finish()
    assert num_added > 20
    assert driver.scheduler.stats.num_ttft_missed == 1


def check_running_share(sizes: list[int], num_late: int) -> None:
    """A late prompt that has begun has had its share of all tokens of prompts, but for a step; it
    has no more of a step that leaves others waiting. Everyone ends."""
    driver = late_driver(num_late)
    num_added, num_tokens = 0, Counter[bool]()
    num_tokens[True] = driver.steps[-1].num_tokens
    while True:
        while driver.scheduler.stats.num_waiting < 4:
            size = sizes[num_added % len(sizes)]
            driver.add(request(f"next{num_added}", size, 1, ttft_s=99.0))
            num_added += 1
        before = LATE_SHARE * num_tokens.total() - num_tokens[True]
        computed = prompt_tokens(driver, driver.step())
        if "late" in driver.token_times:
            break
        if driver.scheduler.stats.num_waiting:
            assert computed.get("late", 0) <= max(before, LEAST_LATE)
        for name, number in computed.items():
            num_tokens[name == "late"] += number
        owed = LATE_SHARE * num_tokens.total() - num_tokens[True]
        assert owed <= LEAST_LATE + LATE_SHARE * BUDGET
    driver.finish()
    assert len(driver.finishes) == len(driver.news)


RUNNING = (st.lists(st.integers(2, 600), min_size=1, max_size=8), st.integers(300, 3000))


@given(*RUNNING)
def test_a_late_prompt_that_has_begun_gets_its_share(sizes: list[int], num_late: int) -> None:
    check_running_share(sizes, num_late)


def check_pace(num_computed: int, sizes: list[int], target_s: float) -> None:
    """Outputs keep their pace beside a late prompt, of which many tokens are computed: each of its
    next costs as much as several of the others."""
    driver = late_driver(num_computed + 2000, PAIR_S)
    driver.run(num_computed // BUDGET)
    driver.add(request("output", 20, 60, target_s))
    while "output" not in driver.token_times:
        driver.step()
    for number, size in enumerate(sizes):
        driver.add(request(f"next{number}", size, 1, ttft_s=99.0))
        driver.run(2)
    driver.finish()
    assert max(driver.gaps("output")) <= target_s * CLOSE


PAIR_S = 3e-7
BESIDE = (
    st.integers(1000, 3000),
    st.lists(st.integers(2, 300), min_size=1, max_size=12),
    st.floats(0.06, 0.15),
)


@given(*BESIDE)
def test_outputs_keep_their_pace_beside_late_prompts(
    num_computed: int, sizes: list[int], target_s: float
) -> None:
    check_pace(num_computed, sizes, target_s)


def takes_contexts_for_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    room = StepDraft.room
    monkeypatch.setattr(StepDraft, "room", lambda draft, _context=0: room(draft))


def test_planted_fault_of_the_pace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    takes_contexts_for_equal(monkeypatch)
    laws = settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        laws(given(*BESIDE)(check_pace))()


def check_foreseen(sizes: list[tuple[int, bool]], num_tokens: int) -> None:
    """So many tokens of prompts are computed when it was foreseen, where late ones have had their
    turns meanwhile, token by token."""
    queue = WaitingQueue(Shares())
    late, other = waiting("1", 9, 1.0), waiting("2", 9, 1.0)
    queue.add(late)
    queue.make_late(late)
    for size, is_late in sizes:
        queue.note_prompt(late if is_late else other, size)
    foreseen_s = PromptSpeed(3.0, RATE, 0, queue.late_debt).done_s(num_tokens)
    num_late = num_others = 0
    while num_others < num_tokens or is_owed(queue):
        is_turn = is_owed(queue)
        queue.note_prompt(late if is_turn else other, 1)
        num_late += is_turn
        num_others += not is_turn
    assert foreseen_s == pytest.approx(3.0 + (num_others + num_late) / RATE, abs=2 / RATE)


def is_owed(queue: WaitingQueue) -> bool:
    debt = queue.late_debt
    assert debt is not None
    return debt > 0


FORESEEN = (
    st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=4),
    st.integers(0, 4000),
)


@given(*FORESEEN)
def test_what_late_ones_are_owed_is_foreseen(
    sizes: list[tuple[int, bool]], num_tokens: int
) -> None:
    check_foreseen(sizes, num_tokens)


def foresees_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.pacing.lateness.LATE_SHARE", 0.0)


def test_planted_fault_of_what_is_foreseen_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    foresees_no_turns(monkeypatch)
    laws = settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        laws(given(*FORESEEN)(check_foreseen))()


def test_none_late_take_no_time() -> None:
    assert PromptSpeed(3.0, RATE, 200, WaitingQueue(Shares()).late_debt).done_s(800) == 4.0


def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingQueue, "begin_step", lambda _queue, _num_late_running: 0)


def goes_on_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "lets_others_by", False)


@pytest.mark.parametrize("plant", [keeps_nothing, goes_on_first])
def test_planted_fault_of_a_begun_prompt_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    laws = settings(max_examples=50, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        laws(given(*RUNNING)(check_running_share))()


@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.none() | st.floats(0.01, 2.0), st.integers(0, 4)),
        min_size=1,
        max_size=14,
    )
)
def test_all_end_whatever_their_targets(asked: list[tuple[int, float | None, int]]) -> None:
    driver = TimedDriver(400)
    for number, (num_prompt, target_s, num_steps) in enumerate(asked):
        new = request(f"r{number}", num_prompt, 3, ttft_s=target_s)
        driver.add(new)
        for _ in range(num_steps):
            driver.step()
    driver.finish()
    stats = driver.scheduler.stats
    num_targets = sum(target_s is not None for _, target_s, _ in asked)
    assert len(driver.finishes) == len(asked)
    assert stats.num_ttft_met + stats.num_ttft_missed == num_targets


def check_late_share(sizes: list[tuple[int, bool]]) -> None:
    """While late ones and others wait, late ones have had their share of all tokens of prompts, but
    for a prompt of theirs."""
    queue = WaitingQueue(Shares())
    for number, (size, is_late) in enumerate(sizes):
        new = waiting(str(number), size, 1.0)
        queue.add(new)
        if is_late:
            queue.make_late(new)
    left = Counter(is_late for _, is_late in sizes)
    largest = max(size for size, _ in sizes)
    num_tokens = Counter[bool]()
    while left[True] and left[False]:
        queue.begin_step(0)
        head = queue.head
        assert head is not None
        was_late, size = head.is_late, len(head.token_ids)
        queue.remove(head)
        queue.note_admission(head)
        queue.note_prompt(head, size)
        left[was_late] -= 1
        num_tokens[was_late] += size
        owed = LATE_SHARE * num_tokens.total() - num_tokens[True]
        assert -largest <= owed <= largest


SIZES = st.lists(
    st.tuples(st.integers(1, 20), st.sampled_from([True, False, False])), min_size=2, max_size=60
) | st.lists(st.tuples(st.integers(10, 20), st.booleans()), min_size=40, max_size=60)


@given(SIZES)
def test_late_ones_get_their_share_of_all_tokens(sizes: list[tuple[int, bool]]) -> None:
    check_late_share(sizes)


def gives_late_ones_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.queue.LATE_SHARE", 0.0)


def lets_late_ones_by_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.scheduler.queue.LATE_SHARE", 1.0)


@pytest.mark.parametrize("plant", [gives_late_ones_nothing, lets_late_ones_by_at_once])
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    laws = settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        laws(given(SIZES)(check_late_share))()
