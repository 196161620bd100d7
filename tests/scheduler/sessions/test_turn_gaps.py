"""What is kept for how long: the most that the gaps allow to gain, against all times."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.sessions.turn_gaps import MARGIN, MAX_GAPS, TurnGaps

SECONDS = st.floats(0.01, 400.0)


def gaps_of(seconds: list[float]) -> TurnGaps:
    gaps = TurnGaps(assumed=())
    for each in seconds:
        number = gaps.begin(0.0)
        if each < inf:
            gaps.end(number, each)
    return gaps


def gain(seconds: list[float], hold_s: float, saved_s: float, share: float) -> float:
    back = sum(each <= hold_s for each in seconds)
    return (back * saved_s - share * sum(min(each, hold_s) for each in seconds)) / len(seconds)


@given(
    st.lists(st.one_of(SECONDS, st.just(inf)), min_size=1, max_size=MAX_GAPS),
    st.floats(0.0, 10.0),
    st.floats(0.001, 1.0),
    SECONDS,
)
def test_no_other_time_gains_more(
    seconds: list[float], saved_s: float, share: float, other_s: float
) -> None:
    hold_s = gaps_of(seconds).best_hold_s((), saved_s, share, 1000.0) / MARGIN
    best = gain(seconds, hold_s, saved_s, share)
    assert best >= -1e-9
    assert best >= gain(seconds, min(other_s, 300.0), saved_s, share) - 1e-9


def test_sessions_that_never_come_back_are_not_kept() -> None:
    assert gaps_of([inf] * 8).best_hold_s((), 10.0, 0.01, 1000.0) == 0.0


def test_gaps_of_before_are_assumed_and_then_forgotten() -> None:
    gaps = TurnGaps()
    assert gaps.best_hold_s((), 0.2, 0.1, 0.0) == MARGIN
    for number in range(MAX_GAPS):
        gaps.end(gaps.begin(10.0 * number), 10.0 * number + 5.0)
    assert gaps.best_hold_s((), 1.0, 0.1, 1000.0) == pytest.approx(5.0 * MARGIN)


def test_a_gap_that_lasts_says_nothing_of_longer_times() -> None:
    gaps = gaps_of([2.0, 2.0])
    gaps.begin(100.0)
    assert gaps.odds_within(2.0, 101.0) == 1.0
    assert gaps.odds_within(2.0, 103.0) == pytest.approx(2 / 3)


def test_a_session_of_its_own_pace_is_kept_for_that() -> None:
    others = gaps_of([0.5] * 8)
    assert others.best_hold_s((), 4.0, 0.1, 100.0) == pytest.approx(0.5 * MARGIN)
    assert others.best_hold_s((20.0,) * 4, 4.0, 0.1, 100.0) == pytest.approx(20.0 * MARGIN)
