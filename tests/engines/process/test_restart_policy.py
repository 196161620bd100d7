"""When an engine that has ended is started again."""

from hypothesis import given
from hypothesis import strategies as st

from quire.engines.process.restart_policy import LAST_DELAY_S, WINDOW_S, RestartPolicy


def test_an_engine_that_has_done_something_is_followed_at_once() -> None:
    policy = RestartPolicy(20)
    assert [policy.delay_s(float(time), has_progressed=True) for time in range(5)] == [0.0] * 5


def test_one_that_has_done_nothing_is_followed_later_and_later() -> None:
    policy = RestartPolicy(20)
    delays = [policy.delay_s(float(time), has_progressed=False) for time in range(9)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30] and delays[-1] == LAST_DELAY_S
    assert policy.delay_s(9.0, has_progressed=True) == 0.0
    assert policy.delay_s(10.0, has_progressed=False) == 0.5


def test_none_follows_without_restarts() -> None:
    assert RestartPolicy(0).delay_s(0.0, has_progressed=True) is None


@given(st.lists(st.floats(0, 400), max_size=60), st.integers(0, 5))
def test_no_more_than_so_many_follow_within_ten_minutes(gaps: list[float], most: int) -> None:
    policy, now, times = RestartPolicy(most), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if policy.delay_s(now, has_progressed=True) is not None:
            times.append(now)
    for time in times:
        assert sum(time <= other < time + WINDOW_S for other in times) <= most
