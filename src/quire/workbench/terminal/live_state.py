"""The state of a model as its live view has told it so far."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.workbench.terminal.live_events import (
    FIRST_SET,
    STATES,
    BadEvent,
    Changes,
    EngineState,
    LiveEvent,
    LiveFigures,
    Picture,
    ShownProgress,
    ShownRequest,
)
from quire.workbench.terminal.live_targets import TargetHistory

MAX_BLOCKS = 2**24
"""More blocks than any device holds: a server that tells of more is refused."""
NUM_POINTS = 120
"""The figures that are kept for drawing, the newest."""
IN_USE, SHARED = len(STATES), len(STATES) + 1
"""The kinds of blocks that one shown request holds, and that several share; those below are
STATES."""
LOADED = "loaded"


class RequestState(NamedTuple):
    """A request and how far it is."""

    request: ShownRequest
    progress: ShownProgress


@dataclass(slots=True)
class LiveState:
    """The blocks, requests and figures of one model.

    kinds: [num_blocks] uint8 of each block, of the device and then of the host.
    holders: [num_blocks] int64, the number of the first request that holds it, else -1.
    since_s: [num_blocks] float64, Unix seconds at which it came to be so; 0 where that is not
        known.
    """

    model: str = ""
    state: str = "connecting"
    now_s: float = 0.0
    num_device_blocks: int = 0
    block_size: int = 0
    kinds: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    holders: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    since_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    figures: LiveFigures = LiveFigures()
    tokens_per_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_POINTS))
    num_used: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_POINTS))
    targets: TargetHistory = field(default_factory=TargetHistory)
    _sets: dict[int, list[int]] = field(default_factory=dict)
    _requests: dict[int, ShownRequest] = field(default_factory=dict)
    _progress: dict[int, ShownProgress] = field(default_factory=dict)

    def lanes(self) -> list[RequestState]:
        """Return the requests, those that came first first."""
        return [
            RequestState(each, self._progress[n])
            for n, each in sorted(self._requests.items())
            if n in self._progress
        ]

    def apply(self, event: LiveEvent) -> None:
        """Take in an event. Raises BadEvent for what cannot be."""
        match event:
            case EngineState():
                self.model, self.state = event.model, event.state
                if event.state != LOADED:
                    self._forget()
                    self.tokens_per_s.clear()
                    self.num_used.clear()
                    self.targets.clear()
            case Picture():
                self._begin(event)
            case Changes():
                self._change(event)

    def _forget(self) -> None:
        for each in (self._sets, self._requests, self._progress):
            each.clear()
        self.kinds = self.kinds[:0]
        self.figures = LiveFigures()

    def _begin(self, picture: Picture) -> None:
        self._forget()
        num_blocks = picture.num_blocks + picture.num_host_blocks
        if not 0 < num_blocks <= MAX_BLOCKS:
            raise BadEvent(f"the server tells of {num_blocks} blocks")
        self.model, self.state, self.now_s = picture.model, LOADED, picture.t
        self.num_device_blocks, self.block_size = picture.num_blocks, picture.block_size
        self.kinds = np.zeros(num_blocks, np.uint8)
        self.holders = np.full(num_blocks, -1, np.int64)
        self.since_s = np.zeros(num_blocks)
        self._enter(picture.requests, picture.progress)
        self._sets.update(picture.sets)
        self._set_runs(picture.runs)
        self._set_ages(picture.ages)
        self._note(picture.figures)

    def _change(self, changes: Changes) -> None:
        self.now_s = changes.t
        self._enter(changes.entered, changes.progress)
        self._sets.update(changes.sets)
        self._set_runs(changes.runs)
        for n in changes.left:
            self._requests.pop(n, None)
            self._progress.pop(n, None)
        if changes.left:  # no block will be of a set that names one of them
            gone = set(changes.left)
            self._sets = {code: each for code, each in self._sets.items() if gone.isdisjoint(each)}
        self._note(changes.figures)

    def _enter(self, requests: Iterable[ShownRequest], progress: Iterable[ShownProgress]) -> None:
        self._requests.update((each.n, each) for each in requests)
        for each in progress:
            before = self._progress.get(each.n)
            why = each.why or (before.why if before else None)
            self._progress[each.n] = ShownProgress(
                each.n, each.phase, each.computed, each.outputs, each.preemptions, why, each.times
            )

    def _set_runs(self, runs: Sequence[int]) -> None:
        for first, count, code in _groups(runs, 3):
            if first < 0 or count < 0 or first + count > len(self.kinds):
                raise BadEvent(f"blocks {first} to {first + count} are not there")
            where = slice(first, first + count)
            kind, holder = self._kind(code)
            self.kinds[where], self.holders[where] = kind, holder
            self.since_s[where] = self.now_s

    def _kind(self, code: int) -> tuple[int, int]:
        """Return the kind of a code, and the first request that holds its blocks, else -1."""
        if code < FIRST_SET:
            if not 0 <= code < len(STATES):
                raise BadEvent(f"there is no state {code} of blocks")
            return code, -1
        holders = self._sets.get(code)
        if not holders:
            raise BadEvent(f"the state {code} of blocks was not told")
        return (IN_USE if len(holders) == 1 else SHARED), holders[0]

    def _set_ages(self, ages: Sequence[int]) -> None:
        first = 0
        for count, age_s in _groups(ages, 2):
            if count < 0:
                raise BadEvent("a run of ages has no length")
            self.since_s[first : first + count] = self.now_s - age_s if age_s >= 0 else 0.0
            first += count

    def _note(self, figures: LiveFigures) -> None:
        self.figures = figures
        self.tokens_per_s.append(figures.tokens_per_s)
        self.num_used.append(float(figures.blocks.active))
        self.targets.add(self.now_s, figures.targets)


def _groups(numbers: Sequence[int], size: int) -> Iterable[tuple[int, ...]]:
    """Return the numbers in groups. Raises BadEvent where one is left over."""
    if len(numbers) % size:
        raise BadEvent(f"a list of {len(numbers)} numbers is no list of groups of {size}")
    return zip(*[iter(numbers)] * size, strict=True)
