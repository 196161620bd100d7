"""Time limits: who runs out of time ends at once and frees all, who cannot make it is refused."""

from dataclasses import replace

import pytest

from quire.scheduler.reasons import Reason
from tests.scheduler.desk import CONFIG, Desk, draws, request


def test_out_of_time_the_running_and_the_waiting_end_and_free_all() -> None:
    desk = Desk(replace(CONFIG, max_num_seqs=1))
    for name in "ab":
        desk.add(replace(request(name, 4, 40), time_limit_s=3.5))
    while desk.scheduler.has_work:
        desk.turn()
    assert desk.cache.usage.active == 0
    a, b = desk.finishes["a"], desk.finishes["b"]
    assert (a.reason, b.reason) == (Reason.DEADLINE_EXCEEDED,) * 2
    assert (a.num_output_tokens, b.num_output_tokens) == (3, 0)
    assert a.queue_s + a.prefill_s + a.decode_s == b.queue_s == 3.5


def test_blocks_of_who_runs_out_of_time_serve_the_same_step() -> None:
    desk = Desk(num_blocks=9)
    desk.add(replace(request("a", 14, 2), time_limit_s=1.5))
    desk.turn()
    desk.add(request("b", 14, 2))
    step = desk.turn()
    assert (step.drops, [join.new.id for join in step.joins]) == (("a",), ["b"])


def test_the_last_one_out_of_time_is_told_although_nothing_runs() -> None:
    scheduler = Desk().scheduler
    scheduler.add(replace(request("a"), time_limit_s=1.0), 0.0)
    late = scheduler.schedule(0.5)
    step = scheduler.schedule(1.0)
    assert scheduler.has_work, "it has not been told"
    (delta,) = scheduler.update(late, draws(late), 1.0)
    assert delta.finish is not None and delta.finish.reason is Reason.DEADLINE_EXCEEDED
    assert not scheduler.has_work
    assert scheduler.update(step, draws(step), 1.0) == []


def test_who_ended_in_time_is_left_alone() -> None:
    desk = Desk()
    desk.add(replace(request("a", max_tokens=1), time_limit_s=2.0))
    desk.turn()
    desk.add(request("a", max_tokens=4))
    for _ in range(4):
        desk.turn()
    assert desk.finishes["a"].reason is Reason.MAX_TOKENS


def test_who_cannot_be_in_time_is_refused_with_the_numbers() -> None:
    """Eight tokens in each half second, once a step has left someone waiting."""
    desk = Desk()
    for index in range(10):
        assert desk.add(replace(request(f"r{index}", 16), time_limit_s=50.0)) is None
    desk.turn()
    refusal = desk.add(replace(request("hasty"), time_limit_s=8.5))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    assert refusal.message == (
        "144 tokens are to be computed ahead of it, at 16 a second in 9.0 s; the time limit is "
        "8.5 s"
    )
    assert desk.add(replace(request("patient"), time_limit_s=9.0)) is None


def test_nobody_is_refused_before_the_pace_is_known() -> None:
    desk = Desk()
    for index in range(10):
        assert desk.add(replace(request(f"r{index}", 16), time_limit_s=0.1)) is None


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_has_passed_is_refused(limit_s: float) -> None:
    refusal = Desk().add(replace(request("a"), time_limit_s=limit_s))
    assert refusal is not None and refusal.reason is Reason.DEADLINE_HOPELESS
    assert f"the time limit is {limit_s:g} s" in refusal.message
