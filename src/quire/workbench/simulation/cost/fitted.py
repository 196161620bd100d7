"""The cost of a step by coefficients that were fitted, or derived from a device's rates."""

from bisect import bisect_left
from itertools import accumulate, pairwise

from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.cost_file import StepCoefficients


class FittedCost:
    """Tells the seconds of a step by its coefficients (`cost_file.py` has the formula)."""

    def __init__(self, coefficients: StepCoefficients) -> None:
        self._coefficients = coefficients
        self._knots = coefficients.token_knots
        ends = (0, *self._knots)
        segments = zip(pairwise(ends), coefficients.token_s, strict=False)
        self._starts_s = list(accumulate(((b - a) * s for (a, b), s in segments), initial=0.0))
        self._starts = ends

    def step_s(self, work: StepWork) -> float:
        """Return the seconds of a step of this work."""
        by = self._coefficients
        num_tokens = work.num_prefill_tokens + work.num_decode_tokens
        at = bisect_left(self._knots, num_tokens)
        return (
            by.base_s
            + by.seq_s * work.num_seqs
            + self._starts_s[at]
            + (num_tokens - self._starts[at]) * by.token_s[at]
            + by.prefill_s * work.num_prefill_tokens
            + by.context_token_s * work.num_context_tokens
            + by.pair_s * work.num_prefill_pairs
        )
