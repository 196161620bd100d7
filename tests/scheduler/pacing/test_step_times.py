"""What is learnt of the times of steps, and how large a chunk of a prompt may then be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.pacing.step_times import LEAST_PROBE, MAX_GROWTH, LearnedStepTimes
from quire.scheduler.pacing.step_work import StepWork

COSTS = st.tuples(
    st.floats(1e-3, 1e-1),
    st.floats(1e-5, 1e-2),
    st.floats(1e-5, 1e-2),
    st.floats(0, 1e-6),
    st.floats(0, 1e-7),
)
FIT = 1e-3
"""Of a prediction: the fit is held to zero by 1e-9 of its sums, and rows of steps that differ by
little have sums that cancel to 1e-6."""


def decoding(num_seqs: int, context: int) -> StepWork:
    return StepWork(num_seqs, 0, num_seqs, num_seqs * context, 0)


NOTHING = decoding(0, 0)


def prompting(num_tokens: int, start: int = 0, beside: StepWork = NOTHING) -> StepWork:
    num_pairs = num_tokens * start + num_tokens * (num_tokens + 1) // 2
    return StepWork(
        beside.num_seqs + 1,
        num_tokens,
        beside.num_decode_tokens,
        beside.num_context_tokens,
        num_pairs,
    )


WORKS = [
    *(decoding(num, context) for num in (1, 3, 8) for context in (10, 500, 900)),
    *(prompting(num, start) for num in (16, 100, 512) for start in (0, 300, 1000)),
    *(prompting(num, 64, decoding(num_seqs, 200)) for num in (32, 200) for num_seqs in (2, 7)),
]


def seconds_of(costs: tuple[float, ...], work: StepWork) -> float:
    counts = (
        1,
        work.num_prefill_tokens,
        work.num_decode_tokens,
        work.num_context_tokens,
        work.num_prefill_pairs,
    )
    return sum(cost * count for cost, count in zip(costs, counts, strict=True))


def learnt(costs: tuple[float, ...]) -> LearnedStepTimes:
    times = LearnedStepTimes()
    for work in (*WORKS, *WORKS[::-1]):
        times.observe(work, seconds_of(costs, work))
    return times


@given(COSTS, st.sampled_from(WORKS))
def test_the_times_of_a_device_that_is_linear_are_found(
    costs: tuple[float, ...], work: StepWork
) -> None:
    assert learnt(costs).seconds(work) == pytest.approx(seconds_of(costs, work), rel=FIT)


@given(COSTS, st.integers(1, 8), st.integers(0, 2000), st.floats(0.5, 10))
def test_a_chunk_of_a_prompt_is_as_large_as_the_time_allows(
    costs: tuple[float, ...], num_seqs: int, context: int, share: float
) -> None:
    times, beside = learnt(costs), decoding(num_seqs, 300)
    within_s = share * seconds_of(costs, beside)
    most = times.most_prompt_tokens(times.prompt_time(beside, within_s), context)
    bound = MAX_GROWTH * max(work.num_prefill_tokens for work in WORKS)
    assert 0 <= most <= bound
    took_s = seconds_of(costs, prompting(most, context, beside))
    assert most == 0 or took_s <= within_s * (1 + FIT)
    if most + 1 < bound * 0.98:  # what was seen once is forgotten by and by
        next_s = seconds_of(costs, prompting(most + 1, context, beside))
        assert next_s > within_s * (1 - FIT)


@given(
    st.lists(st.tuples(st.sampled_from(WORKS), st.floats(1e-4, 10)), max_size=40),
    st.sampled_from(WORKS),
)
def test_no_noise_makes_a_time_negative(
    observed: list[tuple[StepWork, float]], work: StepWork
) -> None:
    times = LearnedStepTimes()
    for each, seconds in observed:
        times.observe(each, seconds)
    found = times.seconds(work)
    assert found is None or found >= 0
    assert times.most_prompt_tokens(times.prompt_time(work, 1.0), 100) >= 0


def test_what_was_never_seen_is_not_told() -> None:
    times = LearnedStepTimes()
    assert times.seconds(decoding(1, 10)) is None
    times.observe(prompting(100), 0.1)
    assert times.seconds(decoding(1, 10)) is None
    times = LearnedStepTimes()
    times.observe(decoding(2, 10), 0.1)
    assert times.seconds(decoding(2, 10)) == pytest.approx(0.1)
    assert times.seconds(prompting(100)) is None
    assert times.most_prompt_tokens(times.prompt_time(decoding(2, 10), 0.2), 0) == LEAST_PROBE


def test_old_times_are_forgotten() -> None:
    slow, fast = (0.1, 1e-2, 1e-2, 0.0, 0.0), (0.01, 1e-3, 1e-3, 0.0, 0.0)
    times = learnt(slow)
    for _ in range(20):
        for work in WORKS:
            times.observe(work, seconds_of(fast, work))
    for work in WORKS:
        assert times.seconds(work) == pytest.approx(seconds_of(fast, work), rel=0.02)
    assert times.error < 0.02


def test_the_error_of_predictions_is_their_mean_deviation() -> None:
    times = learnt((0.01, 1e-3, 1e-3, 0.0, 0.0))
    for index in range(400):
        work = WORKS[index % len(WORKS)]
        exact_s = seconds_of((0.01, 1e-3, 1e-3, 0.0, 0.0), work)
        times.observe(work, exact_s * (1.2 if index % 2 else 0.8))
    assert times.error == pytest.approx(0.2, abs=0.05)
