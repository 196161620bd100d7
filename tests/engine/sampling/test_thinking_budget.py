"""Thinking budgets: reasoning is no longer than they say, alone, in a batch and preempted."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.sampling.logits_processor import ProcessorContext
from quire.engine.sampling.sampling_state import SamplingState, build_sampling_state
from quire.scheduler.request import Sampling, Stopping, ThinkingBudget
from tests.engine.invariants import arrivals, check_invariants, shapes
from tests.engine.sampling.sampler_cases import Allowed, Make
from tests.engine.toy_engine import Arrival, Shape, alone
from tests.profiles import cases

OPENS, CLOSES = 3, 4
budgets = st.builds(
    ThinkingBudget,
    st.integers(0, 6),
    st.sampled_from([(OPENS,), (7, 8)]),
    st.sampled_from([(CLOSES,), (7, 9), (7, 7, 9)]),
    st.booleans(),
)


def num_thought(token_ids: Sequence[int], budget: ThinkingBudget) -> int:
    """The tokens between the tags, by searching the whole output again and again."""
    rest, is_open, num = list(token_ids), budget.is_open, 0
    while True:
        tag = list(budget.closes if is_open else budget.opens)
        starts = (at for at in range(len(rest)) if rest[at : at + len(tag)] == tag)
        at = next(starts, None)
        num += (len(rest) if at is None else at) if is_open else 0
        if at is None:
            return num
        rest, is_open = rest[at + len(tag) :], not is_open


def state_of(
    budget: ThinkingBudget, token_ids: Sequence[int] = (0,), sampling: Sampling | None = None
) -> SamplingState:
    given = replace(sampling or Sampling(), thinking_budget=budget)
    return build_sampling_state(ProcessorContext(given, Stopping(64), token_ids, 1))


@cases(100)
@given(shapes(), arrivals(), st.lists(budgets, min_size=8, max_size=8))
def test_same_text_and_no_more_reasoning_alone_or_in_any_batch(
    shape: Shape, script: list[Arrival], given: list[ThinkingBudget]
) -> None:
    for index, (arrival, budget) in enumerate(zip(script, given, strict=False)):
        sampling = replace(arrival.new.sampling, thinking_budget=budget)
        script[index] = replace(arrival, new=replace(arrival.new, sampling=sampling))
        longest = budget.max_tokens + len(budget.closes) - 1  # a tag that is cut is reasoning
        assert num_thought(alone(script[index].new, shape.layers), budget) <= longest
    check_invariants(shape, script)


@cases(30)
@given(budgets, st.integers(0, 2**32))
def test_only_what_is_over_the_budget_is_forced(
    make: Make, budget: ThinkingBudget, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    params = Sampling(seed=seed)
    state, sampler, output = state_of(budget, sampling=params), make(12), list[int]()
    for _ in range(30):
        logits = torch.randn(1, 12, generator=generator)
        resumed = state_of(budget, [0, *output], params)
        plain = build_sampling_state(ProcessorContext(params, Stopping(64), [0, *output], 1))
        token_id, again, unforced = (
            sampler.sample(logits, [each]).result().token_ids[0] for each in (state, resumed, plain)
        )
        assert again == token_id
        if token_id != unforced:
            assert token_id in budget.closes
            assert num_thought(output, budget) >= budget.max_tokens
        state.append(token_id)
        output.append(token_id)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_budget_of_none_closes_at_once(make: Make, is_open: bool) -> None:
    state = state_of(ThinkingBudget(0, (OPENS,), (CLOSES,), is_open), sampling=Sampling(0.0))
    said = []
    for wanted in (OPENS, 0, 1, OPENS, 0):
        logits = torch.zeros(1, 40)
        logits[0, wanted] = 5.0
        said += make(40).sample(logits, [state]).result().token_ids
        state.append(said[-1])
    closed = [CLOSES, 0, 1, OPENS, CLOSES] if is_open else [OPENS, CLOSES, 1, OPENS, CLOSES]
    assert said == closed


@pytest.mark.parametrize("token_id", [4, 31, 32, 63])
def test_a_mask_that_bans_the_closing_tag_puts_it_off(make: Make, token_id: int) -> None:
    budget = ThinkingBudget(1, (OPENS,), (token_id,), is_open=True)
    sampling = Sampling(0.0, thinking_budget=budget)
    context = ProcessorContext(sampling, Stopping(64), (0, 9, 9), 1)
    for allowed, said in (({9, 10}, 10), ({10, token_id}, token_id)):
        state = build_sampling_state(context)
        state.processors.append(Allowed(frozenset(allowed)))
        assert make(70).sample(torch.arange(70.0)[None] % 11, [state]).result().token_ids == [said]
    banned = replace(sampling, logit_bias=((token_id, -torch.inf),))
    state = build_sampling_state(ProcessorContext(banned, Stopping(64), (0, 9, 9), 1))
    assert make(70).sample(torch.arange(70.0)[None] % 11, [state]).result().token_ids == [10]


TOKEN_BYTES = (b"", b"<th", b"ink>", b"</think>", b"why", b".</", b"think>\n", b" <think>", b"<")


@pytest.mark.parametrize(
    ("output", "is_open"),
    [
        ((4, 5, 6), False),
        ((4, 3), False),
        ((5, 4, 6), True),
        ((3, 4, 1, 2, 4), True),
        ((3, 1, 2, 4, 5, 6, 4), False),
        ((3, 8, 1, 2), True),
    ],
)
def test_tags_are_found_in_the_text(make: Make, output: tuple[int, ...], is_open: bool) -> None:
    """Whichever tokens they are written by. Where it is open, the budget is spent."""
    budget = ThinkingBudget(0, (7,), (3,), is_open=True)
    sampling = Sampling(0.0, thinking_budget=budget)
    context = ProcessorContext(sampling, Stopping(64), (0, *output), 1, TOKEN_BYTES)
    state = build_sampling_state(context)
    logits = torch.arange(9.0)[None]
    assert make(9).sample(logits, [state]).result().token_ids == [3 if is_open else 8]
