"""Requests that an engine had accepted before it ended, taken in by another."""

from dataclasses import replace

import pytest

from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest, ResumedOutput
from quire.scheduler.step import Delta, Finish, Step
from tests.scheduler.driver import CONFIG, Driver, request, result_of

ADMITTED = (Event(-9.0, Reason.QUEUED, 0), Event(-7.0, Reason.ADMITTED, 2))
HAS_TOKENS = ResumedOutput((7, 7), timeline=(*ADMITTED, Event(-4.0, Reason.FIRST_TOKEN, 0)))


def resume(driver: Driver, new: NewRequest, resumed: ResumedOutput = HAS_TOKENS) -> None:
    assert driver.scheduler.resume(new, resumed, driver.now) is None
    driver.news[new.id], driver.arrived_s[new.id] = new, driver.now
    driver.waiting[new.id] = None


def test_all_that_are_resumed_come_before_all_that_are_new_each_in_their_order() -> None:
    driver = Driver(replace(CONFIG, max_num_seqs=1))
    assert driver.add(request("new")) is None
    resume(driver, request("a"))
    resume(driver, request("b"), ResumedOutput(timeline=ADMITTED[:1]))
    assert driver.add(request("newer")) is None
    resume(driver, request("c"))
    driver.run()
    assert [name for name, _ in driver.admissions] == ["a", "b", "c", "new", "newer"]


def test_a_priority_ages_from_the_first_arrival() -> None:
    """Of two equals the one that waited in the engine before is first, though it is added last."""
    config = replace(
        CONFIG, max_num_seqs=1, scheduling_policy=PolicyName.PRIORITY, priority_ageing_s=30.0
    )
    driver = Driver(config)
    resume(driver, request("later"), ResumedOutput(timeline=(Event(-1.0, Reason.QUEUED, 0),)))
    resume(driver, request("sooner"), ResumedOutput(timeline=(Event(-5.0, Reason.QUEUED, 0),)))
    assert driver.add(replace(request("better"), priority=-1)) is None
    driver.run()
    assert [name for name, _ in driver.admissions] == ["better", "sooner", "later"]


def test_a_full_queue_and_a_hopeless_deadline_refuse_nobody_who_was_accepted() -> None:
    driver = Driver(replace(CONFIG, max_num_seqs=1, max_num_queued_reqs=0))
    assert driver.add(request("a")) is None
    driver.step()
    assert driver.add(request("b")) is not None
    resume(driver, replace(request("c"), time_limit_s=9.5))
    driver.run()
    assert driver.finishes["c"].reason is Reason.DEADLINE_EXCEEDED


def test_the_time_limit_counts_from_the_first_arrival() -> None:
    driver = Driver()
    resume(driver, replace(request("a", max_tokens=40), time_limit_s=12.0))
    driver.run()
    assert driver.finishes["a"].reason is Reason.DEADLINE_EXCEEDED
    assert driver.now == 3.0


def test_a_request_that_is_here_or_never_fits_is_refused() -> None:
    driver = Driver(num_blocks=9)
    resume(driver, request("a"))
    again = driver.scheduler.resume(request("a"), HAS_TOKENS, driver.now)
    assert again is not None and again.reason is Reason.DUPLICATE_ID
    large = driver.scheduler.resume(request("b", max_tokens=20), HAS_TOKENS, driver.now)
    assert large is not None and large.reason is Reason.NEVER_FITS


@pytest.mark.parametrize("is_first", [True, False])
def test_an_output_that_is_complete_ends_at_the_next_update(is_first: bool) -> None:
    driver = Driver()
    if not is_first:
        assert driver.add(request("other")) is None
    resume(driver, request("a", max_tokens=2))
    assert driver.scheduler.has_work
    driver.run()
    assert driver.finishes["a"].reason is Reason.MAX_TOKENS
    assert driver.finishes["a"].num_output_tokens == 2
    assert "a" not in [name for name, _ in driver.admissions]


def test_the_account_goes_on() -> None:
    events = (*HAS_TOKENS.timeline, Event(-2.0, Reason.PREEMPTED_FOR_BLOCKS, 5))
    driver = Driver()
    resume(driver, request("a"), ResumedOutput((7, 7), timeline=events))
    driver.run()
    finish = driver.finishes["a"]
    assert finish == Finish(
        reason=Reason.MAX_TOKENS,
        number=7,
        num_prompt_tokens=4,
        num_output_tokens=4,
        num_cached_tokens=2,
        num_preemptions=1,
        queue_s=2.0,
        prefill_s=3.0,
        decode_s=4.0 + 2.0,
        timeline=(
            *events,
            Event(0.0, Reason.ENGINE_RESTARTED, 2),
            Event(0.5, Reason.RESUMED, 0),
            Event(2.0, Reason.MAX_TOKENS, 7),
        ),
    )
    stats = driver.scheduler.stats
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (0, 2)
    assert (stats.num_prefix_queries, stats.num_preemptions) == (0, 0)
    assert stats.num_wasted_tokens == 4 + 2 - 1


def test_old_events_are_not_told_again() -> None:
    driver = Driver()
    resume(driver, request("a"))
    assert driver.scheduler.take_events() == (("a", Event(0.0, Reason.ENGINE_RESTARTED, 2)),)


def test_a_prompt_that_was_paid_for_is_not_charged_again() -> None:
    """Else the next of its tenant would be behind one of another, which was served a little."""
    config = replace(CONFIG, max_num_seqs=2, scheduling_policy=PolicyName.FAIR)
    driver = Driver(config)
    driver.scheduler.charge({"b": 1.0})
    resume(driver, replace(request("a", num_prompt=20), tenant="a"))
    for name in ("b", "a2", "b2"):
        assert driver.add(replace(request(name), tenant=name[0])) is None
    driver.run()
    assert [name for name, _ in driver.admissions][:2] == ["a", "a2"]


def test_all_that_was_handed_out_is_computed_again_and_the_next_token_sampled() -> None:
    driver = Driver()
    resume(driver, request("a"))
    step: Step = driver.scheduler.schedule(1.0)
    (chunk,) = step.chunks
    assert (chunk.start, chunk.num_tokens, chunk.samples) == (0, 6, True)
    deltas: list[Delta] = driver.scheduler.update(step, result_of(step), 2.0)
    assert [delta.token_ids for delta in deltas] == [(7,)]
