"""An engine process that is watched tells frames, so often at most, and none when it is not."""

import asyncio
from itertools import pairwise

import pytest

from quire.engine.live_timer import MAX_SHARE, LiveTimer
from quire.engine.messages import EngineOutput
from quire.engine.orders import Watch
from quire.scheduler.live.live_frame import LiveFrame
from tests.engine.test_process import collect, request, running, submitted
from tests.scheduler.driver import Driver
from tests.scheduler.test_live_watch import Folded

INTERVAL_S = 0.02


def frames(outputs: list[EngineOutput]) -> list[LiveFrame]:
    return [output.live for output in outputs if output.live is not None]


async def told(outputs: list[EngineOutput], num: int) -> list[LiveFrame]:
    async with asyncio.timeout(10):
        while len(frames(outputs)) < num:
            await asyncio.sleep(INTERVAL_S)
    return frames(outputs)


async def test_frames_follow_the_work_to_its_end() -> None:
    outputs: list[EngineOutput] = []
    async with running(outputs) as client:
        assert client.facts is not None
        await collect(await submitted(client, request("before")))
        assert frames(outputs) == []
        client.order(Watch(INTERVAL_S))
        (whole,) = await told(outputs, 1)
        assert whole.is_whole
        await asyncio.sleep(3 * INTERVAL_S)
        assert len(frames(outputs)) == 1, "an idle engine has nothing to tell"
        await collect(await submitted(client, request("seen", max_tokens=200)))
        folded = Folded(client.facts.num_blocks)
        seen: set[str] = set()
        num_taken = 0
        async with asyncio.timeout(10):
            while "seen" not in seen or folded.requests:
                for frame in (await told(outputs, num_taken + 1))[num_taken:]:
                    num_taken += 1
                    folded.take(frame)
                    seen.update(each.id for each in folded.requests.values())
        assert all(code < 3 for code in folded.codes), "nothing is held any more"
        client.order(Watch(None))
        await collect(await submitted(client, request("after", max_tokens=200)))
        assert len(frames(outputs)) == num_taken
        client.order(Watch(INTERVAL_S))
        assert (await told(outputs, num_taken + 1))[-1].is_whole


async def test_frames_are_no_more_often_than_was_asked() -> None:
    outputs: list[EngineOutput] = []
    async with running(outputs) as client:
        client.order(Watch(60.0))
        await told(outputs, 1)
        await collect(await submitted(client, request("seen", max_tokens=100)))
        await collect(await submitted(client, request("too", max_tokens=100)))
        assert len(frames(outputs)) == 1


def test_a_watch_that_fails_ends_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = LiveTimer(Driver().scheduler.in_flight, INTERVAL_S, lambda: 1.0)
    monkeypatch.setattr("quire.scheduler.live.live_watch.LiveFrame", None)
    assert timer.take(has_worked=True) is None
    monkeypatch.undo()
    assert timer.take(has_worked=True) is None and timer.wait_s is None


def test_frames_that_take_long_are_further_apart() -> None:
    driver = Driver()
    now = 0.0

    def clock() -> float:
        """Return a time that goes on by the ten milliseconds that everything takes."""
        nonlocal now
        now += 0.01
        return now

    timer = LiveTimer(driver.scheduler.in_flight, INTERVAL_S, clock)
    taken_s = [now for _ in range(1000) if timer.take(has_worked=True) is not None]
    assert len(taken_s) > 5
    first, *apart = [after - before for before, after in pairwise(taken_s)]
    assert first < 2 * INTERVAL_S
    assert all(each == pytest.approx(0.01 / MAX_SHARE, abs=0.03) for each in apart)
