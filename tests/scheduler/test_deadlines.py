"""Time limits: who runs out of time ends at once and frees all, who cannot make it is refused."""

from dataclasses import replace
from re import fullmatch, search

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.pacing.step_work import StepWork
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Stopping
from tests.scheduler.driver import CONFIG, Driver, request, result_of
from tests.scheduler.pacing.test_pace import BASE_S, SEQ_S, TOKEN_S, TimedDriver, seconds_of
from tests.scheduler.pacing.test_pace import request as timed_request


def test_out_of_time_the_running_and_the_waiting_end_and_free_all() -> None:
    driver = Driver(replace(CONFIG, max_num_seqs=1))
    for name in "ab":
        driver.add(replace(request(name, 4, 40), time_limit_s=3.5))
    while driver.scheduler.has_work:
        driver.step()
    assert driver.cache.usage.active == 0
    a, b = driver.finishes["a"], driver.finishes["b"]
    assert (a.reason, b.reason) == (Reason.DEADLINE_EXCEEDED,) * 2
    assert (a.num_output_tokens, b.num_output_tokens) == (3, 0)
    assert a.queue_s + a.prefill_s + a.decode_s == b.queue_s == 3.5


def test_blocks_of_who_runs_out_of_time_serve_the_same_step() -> None:
    driver = Driver(num_blocks=9)
    driver.add(replace(request("a", 14, 2), time_limit_s=1.5))
    driver.step()
    driver.add(request("b", 14, 2))
    step = driver.step()
    assert (step.finished_requests, [each.request.id for each in step.new_requests]) == (
        ("a",),
        ["b"],
    )


def test_the_last_one_out_of_time_is_told_although_nothing_runs() -> None:
    scheduler = Driver().scheduler
    scheduler.add(replace(request("a"), time_limit_s=1.0), 0.0)
    late = scheduler.schedule(0.5)
    step = scheduler.schedule(1.0)
    assert scheduler.has_work, "it has not been told"
    (delta,) = scheduler.update(late, result_of(late), 1.0)
    assert delta.finish is not None and delta.finish.reason is Reason.DEADLINE_EXCEEDED
    assert not scheduler.has_work
    assert scheduler.update(step, result_of(step), 1.0) == []


def test_who_ended_in_time_is_left_alone() -> None:
    driver = Driver()
    driver.add(replace(request("a", max_tokens=1), time_limit_s=2.0))
    driver.step()
    driver.add(request("a", max_tokens=4))
    for _ in range(4):
        driver.step()
    assert driver.finishes["a"].reason is Reason.MAX_TOKENS


def test_who_cannot_be_in_time_is_refused_with_the_numbers() -> None:
    """Eight tokens in each half second, once a step has left someone waiting."""
    driver = Driver()
    for index in range(10):
        assert driver.add(replace(request(f"r{index}", 16), time_limit_s=50.0)) is None
    driver.step()
    refusal = driver.add(replace(request("hasty", 1), time_limit_s=8.5))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    message = r"it takes 9\.\d s at least, 9\.0 s for 144 tokens of prompts ahead of it, .*"
    assert fullmatch(message + r"; the time limit is 8\.5 s", refusal.message)
    assert refusal.wait_s == pytest.approx(0.5, abs=0.3), "by then there is less ahead"
    assert driver.add(replace(request("patient", 1), time_limit_s=9.5)) is None


def timed(name: str, num_prompt: int, max_tokens: int, limit_s: float | None) -> NewRequest:
    """A request whose text may end before it has `max_tokens`."""
    new = timed_request(name, num_prompt, max_tokens, ttft_s=None)
    return replace(new, stopping=Stopping(max_tokens, eos_token_ids=(2,)), time_limit_s=limit_s)


def learnt_driver(num_outputs: int) -> TimedDriver:
    """A driver that has learnt how long steps take, and that outputs have so many tokens."""
    driver = TimedDriver()
    driver.learn()
    for number in range(30):
        driver.add(timed(f"seen{number}", 20, 4000, None))
    while driver.scheduler.has_work:
        driver.step()
        for name, times in driver.token_times.items():
            if len(times) >= num_outputs and name not in driver.finishes:
                driver.scheduler.abort(name, driver.now)
    return driver


def test_the_own_prompt_and_output_are_foreseen() -> None:
    driver = learnt_driver(100)
    token_s = seconds_of(StepWork(1, 0, 1, 100))
    refusal = driver.scheduler.add(timed("a", 20, 4000, 30 * token_s), driver.now)
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    found = search(r"for (\d+) of its output, as few as one in ten such has", refusal.message)
    assert found is not None and 64 <= int(found[1]) <= 110
    assert refusal.wait_s is None, "waiting would not help"
    driver.add(timed("b", 20, 4000, 120 * token_s), timed("c", 20, 10, 30 * token_s))
    driver.add(replace(timed("d", 20, 4000, 30 * token_s), tenant="of whom nothing is known"))
    refusal = driver.scheduler.add(timed("e", 2000, 1, 1.0), driver.now)
    assert refusal is not None and "for 2000 of its own prompt" in refusal.message


def test_a_group_of_which_all_are_refused_is_tried_again() -> None:
    driver = learnt_driver(100)
    for number in range(200):
        if driver.scheduler.add(timed(f"n{number}", 20, 4000, 0.1), driver.now) is None:
            break
    assert 5 < number < 100


@given(
    st.lists(st.tuples(st.sampled_from([10, 300]), st.integers(1, 40)), max_size=6),
    st.sampled_from([4, 100, 1000]),
    st.integers(1, 60),
    st.floats(0.01, 2.0),
)
def test_who_would_have_been_in_time_is_not_refused(
    others: list[tuple[int, int]], num_prompt: int, max_tokens: int, limit_s: float
) -> None:
    driver = TimedDriver()
    driver.learn()
    for number, (num_tokens, num_outputs) in enumerate(others):
        driver.add(timed_request(f"r{number}", num_tokens, num_outputs))
    driver.run(3)
    new = timed_request("new", num_prompt, max_tokens, ttft_s=None)
    hasty = replace(new, id="hasty", time_limit_s=limit_s)
    refusal = driver.scheduler.add(hasty, driver.now)
    if refusal is None:
        driver.scheduler.abort("hasty", driver.now)
    driver.add(new)
    driver.finish()
    finish = driver.finishes["new"]
    needed_s = finish.queue_s + finish.prefill_s + finish.decode_s
    assert refusal is None or needed_s > limit_s
    least_s = 0.4 * (num_prompt * TOKEN_S + max_tokens * (BASE_S + SEQ_S))
    assert refusal is not None or limit_s > least_s, "what is far out of reach is refused"


def test_a_target_for_the_first_token_that_is_out_of_reach_is_told_at_once() -> None:
    driver = TimedDriver()
    driver.learn()
    driver.add(timed_request("late", 3000, 2, ttft_s=1.0), timed_request("far", 30, 2, ttft_s=9.0))
    driver.finish()
    expected = {
        name: [e.number for e in finish.timeline if e.reason is Reason.LATE_EXPECTED]
        for name, finish in driver.finishes.items()
    }
    assert expected["far"] == []
    assert driver.scheduler.stats.num_ttft_foreseen == 1
    (ms,) = expected["late"]
    assert 500 < ms <= 1000 * (driver.token_times["late"][0] - 1.0) + 1000


def test_nobody_is_refused_before_the_throughput_is_known() -> None:
    driver = Driver()
    for index in range(10):
        assert driver.add(replace(request(f"r{index}", 16), time_limit_s=0.1)) is None


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_has_passed_is_refused(limit_s: float) -> None:
    refusal = Driver().add(replace(request("a"), time_limit_s=limit_s))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    assert f"the time limit is {limit_s:g} s" in refusal.message
