"""Forecasts of loads: every token is computed once, within the bounds of a step."""

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.planning.forecast import Load, StepBounds, forecast
from quire.simulation.step_work import StepWork


@dataclass(frozen=True)
class OneSecond:
    """Each step takes a second, and is remembered."""

    steps: list[StepWork] = field(default_factory=list)

    def step_s(self, work: StepWork) -> float:
        self.steps.append(work)
        return 1.0


@given(
    st.builds(Load, st.integers(1, 12), st.integers(1, 60), st.integers(1, 12)),
    st.integers(1, 8),
    st.integers(0, 40),
)
def test_every_token_is_computed_once(load: Load, num_seqs: int, more: int) -> None:
    cost, bounds = OneSecond(), StepBounds(num_seqs + more, num_seqs)
    found = forecast(cost, load, bounds)
    work = [dataclasses.astuple(each) for each in cost.steps]
    _, prefill, decode, context, pairs = (sum(column) for column in zip(*work, strict=True))
    inputs, outputs = load.num_input_tokens, load.num_output_tokens
    assert prefill == load.num_requests * inputs
    assert decode == load.num_requests * (outputs - 1)
    assert pairs == load.num_requests * inputs * (inputs + 1) // 2
    assert context == load.num_requests * sum(inputs + made for made in range(1, outputs))
    assert all(each.num_tokens <= bounds.max_num_batched_tokens for each in cost.steps)
    assert all(1 <= each.num_seqs <= num_seqs for each in cost.steps)
    assert 1 <= found.ttft_s <= found.max_ttft_s <= len(cost.steps)
    assert found.output_tokens_s == pytest.approx(load.num_requests * outputs / len(cost.steps))


def test_one_request_by_hand() -> None:
    """A prompt of 10 takes three steps of 4, and each further token one."""
    found = forecast(OneSecond(), Load(1, 10, 5), StepBounds(4, 1))
    assert (found.ttft_s, found.itl_s) == (3.0, 1.0)
    assert found.output_tokens_s == pytest.approx(5 / 7)


def test_who_does_not_fit_waits() -> None:
    """Two of three run; the third begins when they have ended."""
    found = forecast(OneSecond(), Load(3, 2, 3), StepBounds(4, 2))
    assert found.num_running == 2
    assert found.max_ttft_s == 4.0
    assert found.ttft_s == pytest.approx(2.0)


def test_bounds_within_which_nothing_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="no request can run"):
        forecast(OneSecond(), Load(1, 1, 1), StepBounds(1, 2))
