"""Time limits: who runs out of time ends at once and frees all, who cannot make it is refused."""

from dataclasses import replace

import pytest

from quire.scheduler.reasons import Reason
from tests.scheduler.driver import CONFIG, Driver, request, result_of


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
    refusal = driver.add(replace(request("hasty"), time_limit_s=8.5))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    assert refusal.message == (
        "144 tokens are to be computed ahead of it, at 16 a second in 9.0 s; the time limit is "
        "8.5 s"
    )
    assert driver.add(replace(request("patient"), time_limit_s=9.0)) is None


def test_nobody_is_refused_before_the_throughput_is_known() -> None:
    driver = Driver()
    for index in range(10):
        assert driver.add(replace(request(f"r{index}", 16), time_limit_s=0.1)) is None


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_has_passed_is_refused(limit_s: float) -> None:
    refusal = Driver().add(replace(request("a"), time_limit_s=limit_s))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    assert f"the time limit is {limit_s:g} s" in refusal.message
