"""Brings a cost of steps, as the roofline of a device, into the form that files of costs have."""

from quire.scheduler.pacing.step_work import StepWork
from quire.workbench.simulation.cost.cost_file import StepCoefficients
from quire.workbench.simulation.cost.step_cost import StepCost

KNOTS = tuple(sorted({round(2 ** (each / 8)) for each in range(13 * 8 + 1)}))
"""Tokens of a step at which the cost is asked for: 1 to 8,192, each some 9 % more."""
SAME_SLOPE = 1e-3
"""Slopes that differ by this share of the larger one are one."""
CONTEXT, PROMPT, NUM_SEQS = 1024, 1024, 256
"""Tokens of a context and of a prompt, and sequences, by which the other coefficients are told."""


def coefficients_of(cost: StepCost) -> StepCoefficients:
    """Return coefficients that tell nearly the seconds that `cost` does: exactly for full attention
    beyond the knots; for windows as at a context of CONTEXT tokens."""
    base_s = cost.step_s(StepWork(0, 0, 0, 0))
    knots, slopes = _slopes(cost, base_s)
    most = KNOTS[-1]
    whole_s = cost.step_s(_prefill(most))
    seqs_s = cost.step_s(StepWork(NUM_SEQS, most, 0, 0)) - whole_s
    decode_s = cost.step_s(StepWork(NUM_SEQS, 0, NUM_SEQS, NUM_SEQS * CONTEXT))
    short_s = cost.step_s(StepWork(NUM_SEQS, 0, NUM_SEQS, NUM_SEQS))
    num_pairs = PROMPT * (PROMPT + 1) // 2
    pairs_s = cost.step_s(StepWork(0, PROMPT, 0, 0, num_pairs)) - cost.step_s(_prefill(PROMPT))
    return StepCoefficients(
        base_s=base_s,
        token_knots=knots,
        token_s=slopes,
        seq_s=seqs_s / NUM_SEQS,
        context_token_s=(decode_s - short_s) / (NUM_SEQS * (CONTEXT - 1)),
        pair_s=pairs_s / num_pairs,
    )


def _prefill(num_tokens: int) -> StepWork:
    return StepWork(0, num_tokens, 0, 0)


def _slopes(cost: StepCost, base_s: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the knots at which the slope over the tokens of a step changes, and the slopes."""
    knots: list[int] = []
    slopes: list[float] = []
    before, before_s = 0, base_s
    for knot in KNOTS:
        now_s = cost.step_s(_prefill(knot))
        slope = max((now_s - before_s) / (knot - before), 0.0)
        if not slopes or abs(slope - slopes[-1]) > SAME_SLOPE * max(slope, slopes[-1]):
            if slopes:
                knots.append(before)
            slopes.append(slope)
        before, before_s = knot, now_s
    return tuple(knots), tuple(slopes)
