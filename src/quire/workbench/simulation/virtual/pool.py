"""Engines of a simulation that a request may go to, and which of them gets it."""

from typing import NamedTuple

from quire.scheduler.request import NewRequest
from quire.workbench.simulation.virtual.virtual_engine import RoutedRequest, VirtualEngine


class PoolPlacement(NamedTuple):
    """The place in its pool of the engine that has a request, and how much work that is."""

    place: int
    work: int


class EnginePool:
    """Knows of the work of its engines what they were handed, not how far they are: each
    request counts for its tokens until it has ended."""

    def __init__(self) -> None:
        self.engines: list[VirtualEngine] = []
        self._work: list[int] = []
        self._placed: dict[str, PoolPlacement] = {}

    def add(self, engine: VirtualEngine) -> None:
        """Let requests go to an engine."""
        self.engines.append(engine)
        self._work.append(0)

    def place(self, new: NewRequest) -> int:
        """Return the place of the engine with the least work, the first of several. The request
        counts for it from now on."""
        place = min(range(len(self._work)), key=self._work.__getitem__)
        work = len(new.prompt_token_ids) + new.stopping.max_tokens
        self._placed[new.id] = PoolPlacement(place, work)
        self._work[place] += work
        return place

    def hand(self, handed: RoutedRequest, now: float) -> None:
        """Hand a request to the engine with the least work."""
        self.engines[self.place(handed.new)].hand(handed, now)

    def end(self, request_id: str) -> int:
        """Note that a request has ended, or is not taken; return the place of its engine."""
        place, work = self._placed.pop(request_id)
        self._work[place] -= work
        return place
