"""Percentiles, ratios of pairs, and what makes a run worthless."""

import pytest
from bench.load import LoadResult
from bench.results import Run, build_row
from bench.workloads import WORKLOADS

from quire.workbench.bench.load import Percentiles, percentile
from tests.rounding import compounded

W4 = WORKLOADS["W4"]
W2 = WORKLOADS["W2"]


def run(label: str, round_index: int, tok_s: float, *, num_wrong_length: int = 0) -> Run:
    some = Percentiles(p50_ms=tok_s, p90_ms=None, p99_ms=None)
    load = LoadResult(
        num_requests=64,
        num_failed=0,
        num_wrong_length=num_wrong_length,
        num_without_usage=0,
        first_failure=None,
        num_prompt_tokens=0,
        num_cached_tokens=0,
        num_output_tokens=0,
        wall_s=1.0,
        client_cpu_s=0.0,
        output_tok_s=tok_s,
        total_tok_s=3 * tok_s,
        first_token=some,
        inter_token=some,
        end_to_end=some,
    )
    return Run(label, W2, round_index, load, 2.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 1.75), (50, 2.5), (99, 3.97), (100, 4.0)]
)
def test_percentile_interpolates(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected, rel=compounded(4))


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 50) is None


def test_ratios_are_taken_within_rounds() -> None:
    runs = [run("a", 0, 10), run("b", 0, 5), run("a", 1, 30), run("b", 1, 10)]
    row = build_row(W2, runs, ("a", "b"))
    assert row.ratios == (2.0, 3.0)
    assert row.first.throughput == 20.0
    assert row.second.inter_token_p50_ms == 7.5
    assert row.remarks == ()


def test_round_with_a_short_answer_has_no_ratio() -> None:
    runs = [run("a", 0, 10), run("b", 0, 5), run("a", 1, 30, num_wrong_length=2), run("b", 1, 10)]
    row = build_row(W2, runs, ("a", "b"))
    assert row.ratios == (2.0,)
    assert row.first.throughput == 10.0
    assert row.num_rounds == 2
    assert row.remarks == ("round 2, a: 2 of wrong length",)


def test_warm_up_keeps_the_shape_but_for_its_length() -> None:
    shape = W2.warm_up()
    assert (shape.num_requests, shape.num_output_tokens) == (W2.concurrency, 8)
    assert shape.num_prompt_tokens == W2.num_prompt_tokens
    assert W4.warm_up().num_output_tokens == W4.num_output_tokens
