"""The cost of steps: what is fitted, and what a file may say."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.scheduler.pacing.step_work import StepWork, work_of
from quire.scheduler.step import SeqChunk, Step
from quire.workbench.simulation.cost.cost_file import (
    CostFileError,
    StepCoefficients,
    built_in_names,
    load_cost,
    save_cost,
)
from quire.workbench.simulation.cost.fit import MeasuredStep, TooFewSteps, fit_gaps, fit_steps
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.cost.non_negative import non_negative_least_squares

TRUE = StepCoefficients(5e-3, (16,), (2e-4, 5e-5), 1e-5, 0.0, 1e-7, 1e-8)
ENTRIES = st.lists(st.floats(-3, 3), min_size=8 * 4, max_size=8 * 4)


def works(seed: int, num: int) -> list[StepWork]:
    draw = random.Random(seed)
    found = []
    for _ in range(num):
        num_decode, num_prefill = draw.randrange(65), draw.choice((0, 0, 100, 400))
        pairs = num_prefill * draw.randrange(1, 500)
        contexts = num_decode * draw.randrange(1, 900)
        found.append(StepWork(num_decode + 1, num_prefill, num_decode + 1, contexts, pairs))
    return found


def measured(seed: int, num: int) -> list[MeasuredStep]:
    cost = FittedCost(TRUE)
    return [MeasuredStep(each, cost.step_s(each), 1e-3) for each in works(seed, num)]


def test_the_work_of_a_step_is_counted() -> None:
    chunks = (
        SeqChunk("a", 99, 1, (), True),
        SeqChunk("b", 0, 1, (), True),
        SeqChunk("c", 10, 4, (), False),
    )
    work = work_of(Step(1, (), (), chunks, 6))
    assert work == StepWork(3, 5, 1, 100, 1 + 4 * 10 + 10)


@given(ENTRIES, st.lists(st.floats(-3, 3), min_size=8, max_size=8))
def test_no_solution_without_a_negative_part_is_nearer(
    entries: list[float], values: list[float]
) -> None:
    """The conditions of Karush, Kuhn and Tucker: no gradient leads down, but into the negative."""
    rows, wanted = np.array(entries).reshape(8, 4), np.array(values)
    found = non_negative_least_squares(rows, wanted)
    gradient = rows.T @ (wanted - rows @ found)
    scale = 1 + np.abs(rows).max() * np.abs(wanted).max() * 8
    assert (found >= 0).all()
    assert (gradient <= 1e-6 * scale).all()
    assert (np.abs(gradient[found > 1e-6]) <= 1e-6 * scale).all()


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_steps_of_a_model_are_fitted_by_one_that_predicts_them(seed: int) -> None:
    coefficients, errors = fit_steps(measured(seed, 300))
    fitted, true = FittedCost(coefficients), FittedCost(TRUE)
    for each in works(seed + 1, 50):
        assert fitted.step_s(each) == pytest.approx(true.step_s(each), rel=0.02)
    assert errors.p99 < 0.01 and errors.num_steps == 300


def test_a_few_slow_steps_change_little() -> None:
    steps = measured(1, 300)
    slow = [each._replace(seconds=20 * each.seconds) for each in steps[:15]]
    coefficients, errors = fit_steps(slow + steps[15:])
    fitted = FittedCost(coefficients)
    for each in works(2, 50):
        assert fitted.step_s(each) == pytest.approx(FittedCost(TRUE).step_s(each), rel=0.1)
    assert errors.ratios[-1] > 10 and 0.9 < errors.ratios[50] < 1.1


def test_gaps_are_fitted() -> None:
    gap = fit_gaps(
        [each._replace(gap_s=1e-3 + 2e-5 * each.work.num_seqs) for each in measured(0, 50)]
    )
    assert (gap.base_s, gap.seq_s) == pytest.approx((1e-3, 2e-5))
    assert fit_gaps([each._replace(gap_s=None) for each in measured(0, 50)]).base_s == 0.0


def test_too_few_steps_are_told() -> None:
    with pytest.raises(TooFewSteps, match="19 steps with tokens were measured, must be 20"):
        fit_steps(measured(0, 19))


def test_more_work_never_takes_less_time_in_the_built_in_costs() -> None:
    for name in built_in_names():
        cost = FittedCost(load_cost(name).step)
        seconds = [cost.step_s(StepWork(num, 0, num, 100 * num)) for num in range(1, 600)]
        assert seconds == sorted(seconds) and seconds[0] > 0


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    cost, path = load_cost("h100-8b"), tmp_path / "cost.json"
    save_cost(cost, path)
    assert load_cost(str(path)) == cost


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 2}, "has format 2, must be 1"),
        ({"step": {"base_s": -1, "token_knots": [], "token_s": [0]}}, "is below 0"),
        ({"step": {"base_s": 1, "token_knots": [4], "token_s": [0]}}, "1 slopes, must be 2"),
        ({"step": {"base_s": 1, "token_knots": [4, 4], "token_s": [0, 0, 0]}}, "and ascend"),
        ({"other": 1}, "unknown field `other`"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    path = tmp_path / "cost.json"
    cost = msgspec.to_builtins(load_cost("h100-8b"))
    path.write_bytes(msgspec.json.encode(cost | changes))
    with pytest.raises(CostFileError, match=told):
        load_cost(str(path))


def test_a_cost_that_is_not_there_is_told() -> None:
    with pytest.raises(CostFileError, match="no such file, and the built-in costs are h100-8b"):
        load_cost("h101")
