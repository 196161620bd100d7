"""The lag of the event loop: seen by its timer, kept for a minute, told in metrics."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from quire.server.observability.loop_lag import NUM_SLICES, SLICE_S, LoopLagTimer, RecentMaximum
from tests.server.served import plain_config, serving

HOLD_S = 0.3
COUNT = "quire:event_loop_lag_seconds_count"
LONGEST = "quire:event_loop_longest_hold_seconds"


class Lags:
    def __init__(self) -> None:
        self.seen: list[float] = []
        self.held: list[float] = []

    def on_loop_lag(self, lag_s: float, held_s: float, now: float) -> None:
        self.seen.append(lag_s)
        self.held.append(held_s)


def test_a_held_loop_is_seen_and_a_stopped_timer_sees_nothing() -> None:
    async def run() -> Lags:
        lags = Lags()
        timer = LoopLagTimer(lags, time.monotonic)
        await asyncio.sleep(0.05)
        time.sleep(HOLD_S)
        await asyncio.sleep(0.05)
        timer.stop()
        num_seen = len(lags.seen)
        await asyncio.sleep(0.05)
        assert len(lags.seen) == num_seen
        return lags

    lags = asyncio.run(run())
    assert max(lags.seen) > HOLD_S - 0.05  # less what the timer had yet to run
    assert min(lags.held) >= 0
    assert max(lags.held) > HOLD_S / 2  # even if the machine was busy then
    assert all(held_s <= lag_s for held_s, lag_s in zip(lags.held, lags.seen, strict=True))


def test_metrics_tell_of_a_hold() -> None:
    with serving(plain_config()) as served:
        served.do(lambda: time.sleep(HOLD_S))
        served.do(lambda: None)
        time.sleep(0.05)
        assert served.metric(LONGEST) > HOLD_S / 2
        assert served.metric(COUNT) > 0
        held = served.metric('quire:event_loop_lag_seconds_bucket{engine="0",le="0.1"')
        assert held < served.metric(COUNT)


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 9))))
def test_longest_is_that_of_the_last_minute(steps: list[tuple[float, float]]) -> None:
    """What is younger than 50 s counts, what is older than 60 s does not."""
    longest, now, past = RecentMaximum(), 1000.0, list[tuple[float, float]]()
    for pause_s, value in steps:
        now += pause_s
        longest.observe(value, now)
        past.append((now, value))
        window_s = NUM_SLICES * SLICE_S
        least = max(each for at, each in past if at > now - (window_s - SLICE_S))
        most = max(each for at, each in past if at >= now - window_s)
        assert least <= longest.value() <= most
