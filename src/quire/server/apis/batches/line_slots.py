"""Slots for the lines of batches in the engine: live requests come first.

A line gets a slot while no live request waits. Where one waits all the same, the line that began
last is put back: it is answered later, from its beginning. So batches take what live requests leave
and no more; after each time there is less room for them, and more again as lines are answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from quire.server.apis.batches.line_runner import LineAnswer

YOUNG_TICKS = 10
"""A line that began so few ticks ago is taken to be one of those that wait in the engine."""


class LineSlot:
    """A slot that is held by a line; `is_put_back` says that the line must give way."""

    def __init__(self, slots: "LineSlots") -> None:
        self._slots = slots
        self._running: asyncio.Future[LineAnswer] | None = None
        self.is_put_back = False
        self.num_ticks = 0

    def hold(self, running: asyncio.Future[LineAnswer]) -> None:
        """Note what runs in the slot, and is cancelled where the line is put back."""
        self._running = running

    def put_back(self) -> bool:
        """Cancel what runs in the slot. Return False if nothing runs."""
        if self._running is None or self._running.done() or self.is_put_back:
            return False
        self.is_put_back = True
        self._running.cancel()
        return True

    def release(self) -> None:
        """Give the slot back; the next caller that waits may get it."""
        self._slots.give_back(self)


class LineSlots:
    """Gives out at most `max_lines` slots, `burst` between two calls of `tick`, and one more for
    each that comes back: a live request that comes next does not wait until many are prefilled.
    `num_live_waiting` says how many live requests wait."""

    def __init__(
        self, max_lines: int, num_live_waiting: Callable[[], int], burst: int | None = None
    ) -> None:
        self._max_lines = max_lines
        self._limit = float(max_lines)
        self._num_live_waiting = num_live_waiting
        self._burst = self._num_left = max_lines if burst is None else burst
        self._held: list[LineSlot] = []
        self._waiting: deque[asyncio.Future[LineSlot]] = deque()

    @property
    def num_held(self) -> int:
        return len(self._held)

    async def acquire(self) -> LineSlot:
        """Wait for a slot; callers get them in the order in which they came."""
        waiting: asyncio.Future[LineSlot] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._grant()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.give_back(waiting.result())
            raise

    def give_back(self, slot: LineSlot) -> None:
        self._held.remove(slot)
        if not slot.is_put_back:  # one more line is answered: there was room for it
            self._limit = min(self._limit + 1 / self._limit, self._max_lines)
            self._num_left += 1
        self._grant()

    def _grant(self) -> None:
        """Give slots to those who wait, as far as there is room."""
        while self._waiting and self._num_left > 0 and len(self._held) < int(self._limit):
            if self._num_live_waiting():
                return
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._num_left -= 1
                slot = LineSlot(self)
                self._held.append(slot)
                waiting.set_result(slot)

    def tick(self) -> None:
        """Let some more lines begin, or put lines back for the live requests that wait, one for
        each. It is to be called at equal intervals."""
        num_young = sum(slot.num_ticks < YOUNG_TICKS for slot in self._held)
        num_due = self._num_live_waiting() - num_young
        num_put_back = 0
        for slot in reversed(self._held):
            if num_put_back < num_due:
                num_put_back += slot.put_back()
            slot.num_ticks += 1
        if num_put_back:
            self._limit = max(len(self._held) - num_put_back, 1)
        self._num_left = self._burst
        self._grant()
