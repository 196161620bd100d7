"""Values of options are parsed from text, and what is wrong is told with what is expected."""

import pytest

from quire.engine.config import PriorityTargets
from quire.models.optimizations import Optimization
from quire.server.cli.option_values import priority_targets, some_of

parse = some_of(*Optimization)


def test_several_choices_have_commas_between_them() -> None:
    assert parse("huge-pages, amx") == (Optimization.HUGE_PAGES, Optimization.AMX)


def test_an_unknown_choice_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"expected some of {', '.join(Optimization)}, got 'mmx'"):
        parse("huge-pages,mmx")


def test_targets_of_priorities_have_one_number_or_both() -> None:
    given = " 0:ttft_ms=500,itl_ms=40; -1: itl_ms = 12.5 ;"
    assert priority_targets(given) == (PriorityTargets(0, 500, 40), PriorityTargets(-1, None, 12.5))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "expected targets such as 0:ttft_ms=500,itl_ms=40"),
        ("high:ttft_ms=5", "expected PRIORITY:ttft_ms=N,itl_ms=N"),
        ("0", "expected ttft_ms or itl_ms in '0', got ''"),
        ("0:ttft=5", "expected ttft_ms or itl_ms in '0:ttft=5', got 'ttft'"),
        ("0:ttft_ms=5,ttft_ms=6", "ttft_ms is given twice"),
        ("0:ttft_ms=5;0:itl_ms=6", "priority 0 is given twice"),
        ("0:ttft_ms=0", "ttft_ms in '0:ttft_ms=0': expected milliseconds"),
        ("0:itl_ms=nan", "itl_ms in '0:itl_ms=nan': expected a number"),
    ],
)
def test_what_is_wrong_with_targets_is_told(given: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        priority_targets(given)
