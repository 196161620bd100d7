"""Fits the cost of steps to steps that were measured.

The errors that are made small are relative ones, and a step that took far longer than others like
it, as beside other work of the machine, counts less (Huber's weights).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.cost_file import FitErrors, GapCost, StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.cost.non_negative import non_negative_least_squares

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens of a step at which the slope may change; those beyond the largest step are left out."""
HUBER = 0.1
"""A relative error from which a step counts less."""
NUM_ROUNDS = 8
NUM_RATIOS = 101
MIN_STEPS = 20
"""Fewer steps say too little."""


class MeasuredStep(NamedTuple):
    """The work of a step, the seconds that it took, and those until the next began, None where the
    engine had nothing to do by then."""

    work: StepWork
    seconds: float
    gap_s: float | None = None


class TooFewSteps(Exception):
    """Too few steps were measured; the text is for people."""


def fit_steps(steps: Sequence[MeasuredStep]) -> tuple[StepCoefficients, FitErrors]:
    """Return the coefficients that fit the steps, and how well. Raises TooFewSteps."""
    steps = [each for each in steps if each.work.num_tokens and each.seconds > 0]
    if len(steps) < MIN_STEPS:
        raise TooFewSteps(
            f"{len(steps)} steps with tokens were measured, must be {MIN_STEPS} or more"
        )
    most = max(each.work.num_tokens for each in steps)
    knots = tuple(knot for knot in KNOTS if knot < most)
    rows = np.array([_features(each.work, knots) for each in steps])
    seconds = np.array([each.seconds for each in steps])
    found = [float(each) for each in _fit(rows, seconds)]
    num = len(knots) + 1
    base_s, seq_s, prefill_s, context_s, pair_s = found[num:]
    slopes = tuple(found[:num])
    coefficients = StepCoefficients(base_s, knots, slopes, seq_s, prefill_s, context_s, pair_s)
    return coefficients, errors_of(coefficients, steps)


def errors_of(coefficients: StepCoefficients, steps: Sequence[MeasuredStep]) -> FitErrors:
    """Return how well the coefficients fit steps that took some time."""
    cost = FittedCost(coefficients)
    ratios = np.array([each.seconds / max(cost.step_s(each.work), 1e-9) for each in steps])
    errors = np.abs(1 / ratios - 1)
    median, p90, p99 = (float(np.quantile(errors, at)) for at in (0.5, 0.9, 0.99))
    quantiles = np.quantile(ratios, (np.arange(NUM_RATIOS) + 0.5) / NUM_RATIOS)
    told = tuple(round(float(each), 4) for each in quantiles)
    return FitErrors(len(steps), median, p90, p99, told)


def fit_gaps(steps: Sequence[MeasuredStep]) -> GapCost:
    """Return the seconds between steps; none where no step followed another."""
    gaps = [(each.work.num_seqs, each.gap_s) for each in steps if each.gap_s is not None]
    positive = [(num, gap_s) for num, gap_s in gaps if gap_s > 0]
    if not positive:
        return GapCost()
    rows = np.array([(1.0, num) for num, _ in positive])
    base_s, seq_s = _fit(rows, np.array([gap_s for _, gap_s in positive]))
    return GapCost(float(base_s), float(seq_s))


def _fit(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients [num_columns] of the rows [num_steps, num_columns]."""
    relative = rows / seconds[:, None]
    weights = np.ones_like(seconds)
    found = np.zeros(rows.shape[1])
    for _ in range(NUM_ROUNDS):
        root = np.sqrt(weights)
        found = non_negative_least_squares(relative * root[:, None], root)
        errors = np.abs(relative @ found - 1)
        weights = np.minimum(1.0, HUBER / np.maximum(errors, 1e-12))
    return found


def _features(work: StepWork, knots: tuple[int, ...]) -> tuple[float, ...]:
    """Return the features of a step: its tokens in each segment between knots, then the others."""
    ends = (0, *knots, work.num_tokens + 1 + (knots[-1] if knots else 0))
    tokens = (
        max(min(work.num_tokens, end) - start, 0)
        for start, end in zip(ends[:-1], ends[1:], strict=True)
    )
    others = work.num_seqs, work.num_prefill_tokens, work.num_context_tokens
    return (*tokens, 1.0, *others, work.num_prefill_pairs)
