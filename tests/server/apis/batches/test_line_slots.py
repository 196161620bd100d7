"""Slots of batches: live requests come first, and batches take what they leave."""

import asyncio

from quire.server.apis.batches.line_runner import LineAnswer
from quire.server.apis.batches.line_slots import YOUNG_TICKS, LineSlot, LineSlots


class Waiting:
    """How many live requests wait, as the test says."""

    def __init__(self) -> None:
        self.num = 0

    def __call__(self) -> int:
        return self.num


async def taken(slots: LineSlots, num: int) -> list[LineSlot]:
    """Return the slots that can be had of `num` at once."""
    tasks = [asyncio.ensure_future(slots.acquire()) for _ in range(num)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [each for each in results if isinstance(each, LineSlot)]


def age(slots: LineSlots) -> None:
    """Let so much time pass that no line is young."""
    for _ in range(YOUNG_TICKS):
        slots.tick()


def run_in(slot: LineSlot) -> asyncio.Future[LineAnswer]:
    running: asyncio.Future[LineAnswer] = asyncio.get_running_loop().create_future()
    slot.hold(running)
    return running


async def test_no_line_begins_while_a_live_request_waits() -> None:
    waiting = Waiting()
    slots = LineSlots(4, waiting)
    waiting.num = 1
    assert not await taken(slots, 2)
    waiting.num = 0
    assert len(await taken(slots, 9)) == slots.num_held == 4


async def test_lines_begin_few_at_a_time() -> None:
    slots = LineSlots(10, Waiting(), burst=3)
    first = await taken(slots, 10)
    assert len(first) == 3
    assert not await taken(slots, 1)
    first[0].release()
    assert len(await taken(slots, 9)) == 1
    slots.tick()
    assert len(await taken(slots, 9)) == 3


async def test_the_youngest_line_gives_way_and_comes_again_later() -> None:
    waiting = Waiting()
    slots = LineSlots(4, waiting)
    held = await taken(slots, 4)
    running = [run_in(slot) for slot in held]
    age(slots)
    waiting.num = 1
    slots.tick()
    assert [each.cancelled() for each in running] == [False, False, False, True]
    assert [each.is_put_back for each in held] == [False, False, False, True]
    held.pop().release()
    waiting.num = 0
    assert not await taken(slots, 1)
    for _ in range(3):  # as lines are answered there is room for more again
        held.pop(0).release()
        held += await taken(slots, 9)
    assert slots.num_held >= 3
    while held:
        held.pop().release()
    assert slots.num_held == 0


async def test_one_line_stays_for_each_that_waits_no_more() -> None:
    waiting = Waiting()
    slots = LineSlots(4, waiting)
    held = await taken(slots, 4)
    running = [run_in(slot) for slot in held]
    running[3].set_result(LineAnswer(200, b"", ""))
    age(slots)
    waiting.num = 9
    slots.tick()
    slots.tick()
    assert [each.cancelled() for each in running] == [True, True, True, False]
    for slot in held:
        slot.release()
    waiting.num = 0
    slots.tick()
    assert len(await taken(slots, 9)) >= 1


async def test_a_line_that_has_just_begun_is_taken_for_what_waits() -> None:
    waiting = Waiting()
    slots = LineSlots(4, waiting)
    running = [run_in(slot) for slot in await taken(slots, 2)]
    waiting.num = 2
    slots.tick()
    assert not any(each.cancelled() for each in running)
    waiting.num = 3
    slots.tick()
    assert [each.cancelled() for each in running] == [False, True]
