"""Made-up engines: what they hold, and the frames in which they tell it."""

from dataclasses import dataclass, field

from quire.cache.live.block_watch import FIRST_SET
from quire.scheduler.live.live_frame import LiveFrame, LiveProgress, LiveRequest, RequestPhase
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event

NO_CHANGE = LiveFrame(False, [], [], [], [], [], 0)


def whole(num_blocks: int) -> LiveFrame:
    """The first frame of an engine that has nothing."""
    return LiveFrame(True, [0, 1, 0, 1, num_blocks - 1, 1], [], [], [], [], 0)


def entered(number: int, id: str, tenant: str = "", num_prompt: int = 5) -> LiveRequest:
    return LiveRequest(number, id, tenant, num_prompt, 16, 0.0)


def progress(
    number: int,
    phase: RequestPhase = RequestPhase.DECODE,
    num_outputs: int = 1,
    event: Event | None = None,
) -> LiveProgress:
    return LiveProgress(number, phase, num_outputs + 4, num_outputs, 0, event)


def event(reason: Reason, number: int = 0, other: str = "") -> Event:
    return Event(1.0, reason, number, other)


def two_requests() -> LiveFrame:
    """One runs in blocks of its own and one that both have; the other waits for blocks."""
    waits = event(Reason.WAITS_FOR_BLOCKS, 3, "cmpl-a-0")
    running = progress(0, event=event(Reason.FIRST_TOKEN))
    waiting = progress(1, RequestPhase.PREEMPTED, 0, waits)
    return LiveFrame(
        False,
        [1, 2, 16, 3, 1, 17, 4, 2, 2],
        [(16, (0,)), (17, (0, 1))],
        [entered(0, "cmpl-a-0"), entered(1, "cmpl-b-0")],
        [],
        [running, waiting],
        7,
    )


@dataclass
class MadeUpEngine:
    """Blocks by who holds them, and requests by their numbers; `frame` tells what has changed."""

    num_blocks: int
    holders: dict[int, frozenset[int]] = field(default_factory=dict)
    tenants: dict[int, str] = field(default_factory=dict)
    _told: dict[int, int] = field(default_factory=dict)
    _codes: dict[tuple[int, ...], int] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)

    def enter(self, number: int, tenant: str) -> None:
        self.tenants[number] = tenant

    def leave(self, number: int) -> None:
        del self.tenants[number]
        for block_id, holders in self.holders.items():
            self.holders[block_id] = holders - {number}

    def hold(self, number: int, block_id: int) -> None:
        self.holders[block_id] = self.holders.get(block_id, frozenset()) | {number}

    def frame(self) -> LiveFrame:
        sets: list[tuple[int, tuple[int, ...]]] = []
        runs: list[int] = []
        is_whole = not self._told
        for block_id in range(self.num_blocks):
            code = self._code(block_id, sets)
            if self._told.get(block_id) != code:
                runs += (block_id, 1, code)
                self._told[block_id] = code
        new = [number for number in self.tenants if number not in self._known]
        left = [number for number in self._known if number not in self.tenants]
        self._known = set(self.tenants)
        return LiveFrame(
            is_whole,
            runs,
            sets,
            [entered(number, f"r{number}", self.tenants[number]) for number in new],
            left,
            [progress(number, event=event(Reason.ADMITTED)) for number in new],
            0,
        )

    def _code(self, block_id: int, sets: list[tuple[int, tuple[int, ...]]]) -> int:
        holders = tuple(sorted(self.holders.get(block_id, ())))
        if not holders:
            return 1 if block_id else 0
        if holders not in self._codes:
            self._codes[holders] = FIRST_SET + len(self._codes)
            sets.append((self._codes[holders], holders))
        return self._codes[holders]
