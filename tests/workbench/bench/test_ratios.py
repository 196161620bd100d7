"""Percentiles and ratios: what must hold of any numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.bench.figures import LoadFigures, Samples
from quire.workbench.bench.load import Percentiles, percentile, percentiles
from quire.workbench.bench.ratios import WorkloadRun, compare, ratio_of
from tests.rounding import compounded

times_s = st.floats(0, 1e6, allow_subnormal=False)
rates = st.floats(1e-3, 1e6)
NOTHING = Percentiles(None, None, None)
GOOD = LoadFigures(
    num_requests=4,
    num_failed=0,
    num_other_length=0,
    num_without_usage=0,
    first_failure=None,
    prompt_lengths=(8, 8),
    num_prompt_tokens=32,
    num_cached_tokens=8,
    num_output_tokens=40,
    wall_s=1.0,
    client_cpu_s=0.0,
    output_tok_s=40.0,
    total_tok_s=72.0,
    first_token=NOTHING,
    inter_token=NOTHING,
    per_output_token=NOTHING,
    end_to_end=NOTHING,
    samples=Samples((), (), ()),
)


def interpolation_error(values: list[float]) -> float:
    """A place among so many is rounded twice, and so is the share of a neighbour in what lies
    there; then come a difference, a product and a sum, and the change to milliseconds."""
    return compounded(2 * len(values) + 6) * max(values)


@given(st.lists(times_s, min_size=1), st.floats(0, 100))
def test_percentile_is_numpys_linear_one(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    error = 2 * interpolation_error(values)
    assert percentile(values, percent) == pytest.approx(expected, rel=0, abs=error)


@given(st.lists(times_s, min_size=1))
def test_percentiles_are_in_order_and_in_milliseconds(values: list[float]) -> None:
    told = percentiles(values)
    assert told.p50_ms is not None and told.p90_ms is not None and told.p99_ms is not None
    slack = 1000 * interpolation_error(values)
    assert min(values) * 1000 - slack <= told.p50_ms <= told.p90_ms + slack
    assert told.p90_ms <= told.p99_ms + slack <= max(values) * 1000 + 2 * slack


@given(st.lists(st.tuples(rates, rates), min_size=1))
def test_ratio_lies_between_its_extremes_and_turns_over(pairs: list[tuple[float, float]]) -> None:
    ratio, turned = ratio_of(pairs), ratio_of([(b, a) for a, b in pairs])
    assert ratio is not None and turned is not None
    assert ratio.least <= ratio.median <= ratio.most
    assert ratio.least * turned.most == pytest.approx(1, rel=compounded(3))
    if len(pairs) % 2:
        assert ratio.median * turned.median == pytest.approx(1, rel=compounded(3))


@given(st.lists(st.tuples(st.none() | rates, st.none() | rates)))
def test_rounds_without_two_values_are_left_out(
    pairs: list[tuple[float | None, float | None]],
) -> None:
    whole = [(a, b) for a, b in pairs if a is not None and b is not None]
    ratio = ratio_of(pairs)
    assert (ratio is None) == (whole == [])
    if ratio is not None:
        assert (ratio.num_valid, ratio.num_rounds) == (len(whole), len(pairs))


def run(label: str, round_index: int, figures: LoadFigures) -> WorkloadRun:
    return WorkloadRun("throughput", label, round_index, figures)


@pytest.mark.parametrize("fault", ["num_failed", "num_other_length", "num_without_usage"])
def test_faulty_round_has_no_ratio(fault: str) -> None:
    slow = replace(GOOD, output_tok_s=10.0)
    spoilt = {
        "num_failed": replace(slow, num_failed=1),
        "num_other_length": replace(slow, num_other_length=1),
        "num_without_usage": replace(slow, num_without_usage=1),
    }[fault]
    first = [run("A", 0, GOOD), run("A", 1, GOOD)]
    second = [run("B", 1, spoilt), run("B", 0, slow)]
    ratio = compare(first, second, lambda figures: figures.output_tok_s)
    assert ratio is not None
    assert (ratio.median, ratio.num_valid, ratio.num_rounds) == (4.0, 1, 2)
