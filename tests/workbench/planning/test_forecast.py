"""Forecasts of bursts: the real scheduler computes every token once, and by hand."""

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.planning.forecast import Burst, Forecast, forecast
from quire.workbench.simulation.simulation import Costs, EngineSetup


@dataclass(frozen=True)
class OneSecond:
    """Each step takes a second, and is remembered."""

    steps: list[StepWork] = field(default_factory=list)

    def step_s(self, work: StepWork) -> float:
        self.steps.append(work)
        return 1.0


def engine(num_seqs: int, num_tokens: int, num_blocks: int = 1000) -> EngineSetup:
    scheduler = SchedulerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_tokens,
        max_model_len=100,
        max_num_queued_reqs=100,
    )
    return EngineSetup(scheduler, CacheConfig(num_blocks, 8, max_chunk_tokens=num_tokens))


def seconds(found: Forecast) -> tuple[float | None, ...]:
    first, inter = found.figures.first_token, found.figures.inter_token
    times_ms = first.p50_ms, first.p99_ms, inter.p50_ms
    return tuple(None if each is None else each / 1e3 for each in times_ms)


@given(
    st.builds(Burst, st.integers(1, 12), st.integers(2, 60), st.integers(1, 12)),
    st.integers(1, 8),
    st.integers(0, 40),
)
def test_every_token_is_computed_once(burst: Burst, num_seqs: int, more: int) -> None:
    cost = OneSecond()
    found = forecast(engine(num_seqs, num_seqs + more), Costs(cost), burst)
    work = [dataclasses.astuple(each) for each in cost.steps]
    _, prefill, decode, _, _ = (sum(column) for column in zip(*work, strict=True))
    inputs, outputs = burst.num_input_tokens, burst.num_output_tokens
    assert prefill + decode == burst.num_requests * (inputs + outputs - 1)
    assert all(1 <= each.num_seqs <= num_seqs for each in cost.steps)
    assert found.figures.num_steps == len(cost.steps) and not found.figures.num_refused
    rate = burst.num_requests * outputs / len(cost.steps)
    assert found.figures.output_tok_s == pytest.approx(rate, abs=1e-6)


def test_one_request_by_hand() -> None:
    """A prompt of 10 takes three steps of 4, and each further token one."""
    found = forecast(engine(1, 4), Costs(OneSecond()), Burst(1, 10, 5))
    assert seconds(found) == (3.0, 3.0, 1.0)
    assert found.figures.output_tok_s == pytest.approx(5 / 7, abs=1e-6)


def test_who_does_not_fit_waits() -> None:
    """Two of three run; the third begins when they have ended. So it does where memory holds two:
    3 tokens of a prompt and 3 of an output are one block of 8 each."""
    for setup in (engine(2, 8), engine(3, 9, num_blocks=3)):
        found = forecast(setup, Costs(OneSecond()), Burst(3, 3, 3))
        first_s, last_s, _ = seconds(found)
        assert first_s == 1.0 and last_s is not None and last_s > 3.9
