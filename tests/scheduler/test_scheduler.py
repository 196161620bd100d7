"""The scheduler by its interface: who is scheduled, who waits and why, who ends and how."""

from dataclasses import replace

import pytest

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Sampling, Stopping, TokenLogprobs
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Delta, Step, StepResult

CONFIG = SchedulerConfig(
    max_num_seqs=4,
    max_num_batched_tokens=8,
    max_model_len=64,
    max_num_queued_reqs=3,
    watermark=0.0,
)


def build(config: SchedulerConfig = CONFIG, num_blocks: int = 33) -> tuple[Scheduler, KVCache]:
    cache = KVCache(CacheConfig(num_blocks, block_size=2, enable_prefix_caching=False))
    return Scheduler(config, cache), cache


def request(name: str, num_prompt: int = 4, stopping: Stopping | None = None) -> NewRequest:
    prompt = tuple(range(1, num_prompt + 1))
    return NewRequest(name, prompt, Sampling(), stopping or Stopping(max_tokens=5))


def draw(step: Step, token_id: int = 7) -> StepResult:
    return StepResult(step.number, (token_id,) * sum(chunk.samples for chunk in step.chunks))


def run_step(scheduler: Scheduler, token_id: int = 7) -> tuple[Step, list[Delta]]:
    step = scheduler.schedule(1.0)
    return step, scheduler.update(step, draw(step, token_id), 2.0)


def scheduled(step: Step) -> dict[str, tuple[int, int]]:
    return {chunk.request_id: (chunk.start, chunk.num_tokens) for chunk in step.chunks}


def test_a_step_mixes_decode_and_chunked_prefill_within_its_budget() -> None:
    scheduler, _ = build()
    scheduler.add(request("a", 3), 0.0)
    assert scheduled(run_step(scheduler)[0]) == {"a": (0, 3)}
    scheduler.add(request("b", 12), 0.0)
    step, deltas = run_step(scheduler)
    assert scheduled(step) == {"a": (3, 1), "b": (0, 7)}
    assert step.num_tokens == 8
    assert [delta.request_id for delta in deltas] == ["a"], "half a prompt samples nothing"
    step, deltas = run_step(scheduler)
    assert scheduled(step) == {"a": (4, 1), "b": (7, 5)}
    assert [delta.request_id for delta in deltas] == ["a", "b"]


def test_steps_are_numbered_and_say_who_joined_and_who_left() -> None:
    scheduler, _ = build()
    scheduler.add(request("a", 2, Stopping(max_tokens=1)), 0.0)
    step, deltas = run_step(scheduler)
    assert (step.number, [each.request.id for each in step.new_requests]) == (1, ["a"])
    assert deltas[0].finish is not None and deltas[0].finish.reason is Reason.MAX_TOKENS
    scheduler.add(request("b"), 0.0)
    step, _ = run_step(scheduler)
    assert (
        step.number,
        step.finished_requests,
        [each.request.id for each in step.new_requests],
    ) == (2, ("a",), ["b"])


def test_first_come_first_served_holds_back_a_smaller_one_behind() -> None:
    scheduler, _ = build(replace(CONFIG, max_skips=0), num_blocks=9)
    scheduler.add(request("a", 8), 0.0)
    run_step(scheduler)
    scheduler.add(request("big", 10), 0.0)
    scheduler.add(request("small", 1), 0.0)
    step, _ = run_step(scheduler)
    assert list(scheduled(step)) == ["a"]
    assert scheduler.stats.num_waiting_for_capacity == 2


def test_admission_looks_at_the_whole_prompt_and_the_watermark() -> None:
    scheduler, cache = build(replace(CONFIG, watermark=0.25), num_blocks=9)
    scheduler.add(request("a", 4), 0.0)
    run_step(scheduler)
    scheduler.add(request("b", 9), 0.0)
    assert list(scheduled(run_step(scheduler)[0])) == ["a"]
    assert cache.usage.free == 5, "as many as b needs, but 2 must stay free"


@pytest.mark.parametrize("fits", [True, False])
def test_a_request_that_can_never_fit_is_refused_with_the_numbers(fits: bool) -> None:
    scheduler, _ = build(num_blocks=8)  # 7 blocks of 2
    refusal = scheduler.add(request("a", 9 if fits else 10), 0.0)
    if fits:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.reason is Reason.NEVER_FITS
    assert "10 prompt tokens and 5 output tokens need 8 KV blocks" in refusal.message
    assert not scheduler.has_work


def test_a_request_beyond_the_context_is_refused_with_the_numbers() -> None:
    scheduler, _ = build()
    refusal = scheduler.add(request("a", 60), 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.field) == (Reason.CONTEXT_EXCEEDED, "max_tokens")
    assert "65, more than the context of 64" in refusal.message
    assert scheduler.add(request("b", 59), 0.0) is None


def test_an_empty_prompt_and_a_used_id_are_refused() -> None:
    scheduler, _ = build()
    empty = scheduler.add(request("a", 0), 0.0)
    assert empty is not None and empty.reason is Reason.PROMPT_EMPTY
    assert scheduler.add(request("a"), 0.0) is None
    again = scheduler.add(request("a"), 0.0)
    assert again is not None and again.reason is Reason.DUPLICATE_ID


def test_the_waiting_queue_is_bounded_beyond_what_may_run() -> None:
    scheduler, _ = build()
    for index in range(4 + 3):
        assert scheduler.add(request(f"r{index}"), 0.0) is None
    refusal = scheduler.add(request("late"), 0.0)
    assert refusal is not None and refusal.reason is Reason.QUEUE_FULL
    assert (
        "7 requests wait, the most that may: 3 beside the 4 that can start at once"
        in refusal.message
    )


def test_free_sequences_count_for_nothing_while_blocks_are_short() -> None:
    scheduler, _ = build(num_blocks=7)
    scheduler.add(request("a", 6), 0.0)
    scheduler.add(request("b", 6), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert scheduler.add(request("c"), 0.0) is None
    assert scheduler.add(request("d"), 0.0) is None
    refusal = scheduler.add(request("e"), 0.0)
    assert refusal is not None and refusal.reason is Reason.QUEUE_FULL
    assert "3 requests wait, the most that may: 3 beside the 0" in refusal.message


def test_blocks_run_short_from_the_tail_and_the_victim_keeps_its_output() -> None:
    scheduler, cache = build(num_blocks=7)
    scheduler.add(request("old", 4, Stopping(max_tokens=8)), 0.0)
    scheduler.add(request("new", 4, Stopping(max_tokens=8)), 0.0)
    steps = [run_step(scheduler)[0] for _ in range(4)]
    assert list(scheduled(steps[-1])) == ["old"]
    assert scheduler.stats.num_preemptions == 1
    while "new" not in (ids := [each.request.id for each in run_step(scheduler)[0].new_requests]):
        assert ids == []
    step, deltas = run_step(scheduler)
    assert [delta.request_id for delta in deltas] == ["new"]
    finishes: list[Delta] = []
    while scheduler.has_work:
        finishes += run_step(scheduler)[1]
    finish = finishes[-1].finish
    assert finish is not None
    assert (finish.num_output_tokens, finish.num_preemptions) == (8, 1)
    reasons = [event.reason for event in finish.timeline]
    assert reasons == [
        Reason.QUEUED,
        Reason.ADMITTED,
        Reason.FIRST_TOKEN,
        Reason.PREEMPTED_FOR_BLOCKS,
        Reason.WAITS_AFTER_PREEMPTION,
        Reason.WAITS_FOR_BLOCKS,
        Reason.RESUMED,
        Reason.MAX_TOKENS,
    ]
    assert cache.usage.active == 0


@pytest.mark.parametrize(
    ("config", "num_steps", "reason", "num_for_capacity"),
    [
        (replace(CONFIG, max_num_seqs=1), 1, Reason.WAITS_FOR_SEQUENCE, 1),
        (CONFIG, 4, Reason.WAITS_AFTER_PREEMPTION, 1),
        (CONFIG, 5, Reason.WAITS_FOR_BLOCKS, 1),
        (replace(CONFIG, max_num_batched_tokens=4), 1, Reason.WAITS_FOR_BUDGET, 0),
    ],
)
def test_who_waits_is_told_for_what_and_counted_as_waiting_for_capacity_or_not(
    config: SchedulerConfig, num_steps: int, reason: Reason, num_for_capacity: int
) -> None:
    scheduler, _ = build(config, num_blocks=7)
    for name in "ab":
        scheduler.add(request(name, 4, Stopping(max_tokens=8)), 0.0)
    for _ in range(num_steps):
        run_step(scheduler)
    last = {name: event.reason for name, event in scheduler.take_events()}
    assert last["b"] is reason
    stats = scheduler.stats
    assert (stats.num_waiting, stats.num_waiting_for_capacity) == (1, num_for_capacity)


def test_an_abort_frees_the_blocks_in_the_same_call() -> None:
    scheduler, cache = build()
    scheduler.add(request("a"), 0.0)
    scheduler.add(request("b", 20), 0.0)
    run_step(scheduler)
    for name in "ab":
        aborted = scheduler.abort(name, 2.0)
        assert aborted is not None and aborted.finish is not None
        assert aborted.finish.reason is Reason.ABORTED
    assert cache.usage.active == 0
    assert not scheduler.has_work
    assert scheduler.abort("a", 3.0) is None, "it is gone"
    assert set(scheduler.schedule(3.0).finished_requests) == {"a", "b"}


def test_an_abort_takes_a_waiting_request_out_of_the_queue() -> None:
    scheduler, _ = build()
    for name in "abcdef":
        scheduler.add(request(name), 0.0)
    assert scheduler.abort("b", 0.0) is not None
    run_step(scheduler)
    assert list(scheduled(run_step(scheduler)[0]))[:3] == ["a", "c", "d"]


@pytest.mark.parametrize(
    ("stopping", "sampled", "reason", "num_outputs"),
    [
        (Stopping(5, eos_token_ids=(7,)), 7, Reason.END_OF_SEQUENCE, 1),
        (Stopping(5, stop_token_ids=(7,)), 7, Reason.STOP_TOKEN, 1),
        (Stopping(5, stop_token_ids=(8,)), 7, Reason.MAX_TOKENS, 5),
        (Stopping(5, eos_token_ids=()), 7, Reason.MAX_TOKENS, 5),
        (Stopping(5, min_tokens=3, stop_token_ids=(7,)), 7, Reason.STOP_TOKEN, 4),
    ],
)
def test_a_request_stops_where_it_should(
    stopping: Stopping, sampled: int, reason: Reason, num_outputs: int
) -> None:
    scheduler, _ = build()
    scheduler.add(request("a", 4, stopping), 0.0)
    deltas: list[Delta] = []
    while scheduler.has_work:
        deltas += run_step(scheduler, sampled)[1]
    finish = deltas[-1].finish
    assert finish is not None
    assert (finish.reason, finish.num_output_tokens) == (reason, num_outputs)


def test_times_are_consecutive_and_add_up() -> None:
    scheduler, _ = build()
    scheduler.add(request("a", 4, Stopping(max_tokens=2)), 1.0)
    step = scheduler.schedule(3.0)
    scheduler.update(step, draw(step), 7.0)
    step = scheduler.schedule(7.0)
    (delta,) = scheduler.update(step, draw(step), 15.0)
    finish = delta.finish
    assert finish is not None
    assert (finish.queue_s, finish.prefill_s, finish.decode_s) == (2.0, 4.0, 8.0)


def test_a_request_whose_logits_are_not_finite_ends_alone() -> None:
    scheduler, cache = build()
    scheduler.add(request("a"), 0.0)
    scheduler.add(request("b"), 0.0)
    step = scheduler.schedule(1.0)
    deltas = scheduler.update(
        step, StepResult(step.number, (0, 7), not_finite=frozenset({"a"})), 2.0
    )
    assert deltas[0].finish is not None and deltas[0].finish.reason is Reason.NOT_FINITE
    assert (deltas[0].token_ids, deltas[1].token_ids) == ((), (7,))
    cache.check()


def test_a_late_result_of_a_request_that_left_is_dropped() -> None:
    scheduler, _ = build()
    scheduler.add(request("a"), 0.0)
    first = scheduler.schedule(1.0)
    second = scheduler.schedule(2.0)  # before the first result: feeds the pending token forward
    assert scheduled(second) == {"a": (4, 1)}
    scheduler.abort("a", 2.0)
    assert scheduler.update(first, draw(first), 3.0) == []
    scheduler.add(request("a"), 3.0)
    third = scheduler.schedule(4.0)
    assert scheduler.update(second, draw(second), 5.0) == [], "of an earlier residence"
    assert len(scheduler.update(third, draw(third), 6.0)) == 1


def test_nothing_is_scheduled_beyond_what_may_still_be_drawn() -> None:
    scheduler, _ = build()
    scheduler.add(request("a", 4, Stopping(max_tokens=1)), 0.0)
    scheduler.schedule(1.0)
    assert scheduler.schedule(2.0).chunks == ()


def test_prompt_scores_are_handed_out_once() -> None:
    scheduler, _ = build(num_blocks=9)
    new = replace(request("a", 10), prompt_logprobs=0)
    scheduler.add(new, 0.0)
    handed: list[int] = []
    for _ in range(2):
        step = scheduler.schedule(1.0)
        chunk = step.chunks[0]
        last = min(chunk.start + chunk.num_tokens, 9)
        scores = tuple(TokenLogprobs(i, -1.0, ()) for i in range(chunk.start + 1, last + 1))
        result = replace(draw(step), prompt_logprobs={"a": scores})
        for delta in scheduler.update(step, result, 2.0):
            handed += [score.token_id for score in delta.prompt_logprobs]
    assert handed == list(range(1, 10))


def test_progress_of_the_prompt_is_told_to_whom_asks_until_the_first_token() -> None:
    scheduler, _ = build(num_blocks=33)
    scheduler.add(replace(request("a", 20), reports_prefill=True), 0.0)
    scheduler.add(request("b", 1), 0.0)
    told: dict[str, list[int]] = {"a": [], "b": []}
    while scheduler.has_work:
        step = scheduler.schedule(1.0)
        for delta in scheduler.update(step, draw(step), 2.0):
            if delta.prefill is not None:
                assert delta.prefill.num_cached == 0
                told[delta.request_id].append(delta.prefill.num_computed)
    assert told == {"a": [8, 16, 20], "b": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        (
            {"max_num_batched_tokens": 3},
            "--max-num-batched-tokens is 3, must be at least --max-num-seqs",
        ),
        ({"max_model_len": 1}, "--max-model-len is 1"),
        ({"max_num_queued_reqs": -1}, "--max-num-queued-reqs is -1"),
        ({"watermark": 1.0}, "watermark is 1.0"),
        ({"priority_ageing_s": -1.0}, "--priority-ageing-s is -1.0"),
        ({"priority_ageing_s": 0.0}, "--priority-ageing-s is 0.0, must be above 0"),
        ({"priority_ageing_s": 1e6}, "--priority-ageing-s is 1000000.0, must be above 0"),
        ({"max_skips": -1}, "--max-skips is -1"),
    ],
)
def test_a_wrong_limit_is_named(change: dict[str, float], message: str) -> None:
    values = {name: getattr(CONFIG, name) for name in CONFIG.__slots__}
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**{**values, **change})
