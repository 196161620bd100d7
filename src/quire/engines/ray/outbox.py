"""Collects what a replica has to tell one front end, and hands it to one of its calls.

    engine ── a step ──► pending ──► the oldest open call carries all of it, as one numbered item
                                     the other calls of this front end carry nothing, and end;
                                     while none is open, who comes to `collect` gets it

While an item is on its way the next one fills up: a front end that is slow gets several steps at
once, and nothing is kept for it twice.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from quire.engine.messages import EngineOutput
from quire.engines.ray.messages import EngineLost, ReplicaUpdate, RequestsResumed
from quire.scheduler.step import Delta, Refusal

MAX_IDLE_OUTPUTS = 256
"""So many outputs, none of a request of the front end's, wait for its next call."""


@dataclass(slots=True)
class Pending:
    """The fields of the next `ReplicaUpdate`."""

    outputs: list[EngineOutput] = field(default_factory=list)
    ended: list[Delta] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    is_down: bool = False
    lost: list[EngineLost] = field(default_factory=list)
    resumed: list[RequestsResumed] = field(default_factory=list)
    num_quarantined: int = 0
    num_flights: int = 0
    num_failed_flights: int = 0

    def told(self, number: int) -> ReplicaUpdate:
        """Return the item."""
        return ReplicaUpdate(
            number,
            tuple(self.outputs),
            tuple(self.ended),
            tuple(self.refused),
            self.is_down,
            tuple(self.lost),
            tuple(self.resumed),
            self.num_quarantined,
            self.num_flights,
            self.num_failed_flights,
        )


class Outbox:
    """Hands items to the calls of one front end, on the running event loop. Fill `pending`, then
    `tell`; calls of requests in `ended` end."""

    def __init__(self) -> None:
        self.pending = Pending()
        self._has_news = False
        self._number = 0
        self._calls: dict[str, asyncio.Event] = {}
        self._ended: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no call of the front end is open."""
        return not self._calls

    def has(self, request_id: str) -> bool:
        """Return whether the call of a request is open and the request has not ended."""
        return request_id in self._calls and request_id not in self._ended

    def open(self, request_id: str) -> None:
        """Open the call of a request, which is to `carry` from then on."""
        self._calls[request_id] = asyncio.Event()

    def give_back(self) -> None:
        """Give the requests of all open calls back: no engine follows."""
        self.pending.is_down = True
        self.tell(list(self._calls))

    def tell(self, ended: Iterable[str] = ()) -> None:
        """Send what is pending; the calls of the requests that have `ended` are over then."""
        self._has_news = True
        for request_id in ended:
            if request_id in self._calls:
                self._ended.add(request_id)
                self._calls[request_id].set()
        if not self._calls:
            del self.pending.outputs[:-MAX_IDLE_OUTPUTS]
        self._wake_carrier()

    async def carry(self, request_id: str) -> AsyncGenerator[ReplicaUpdate, None]:
        """Yield what is to be told, while this is the oldest call, until the request has ended."""
        event = self._calls[request_id]
        while True:
            if self._has_news and next(iter(self._calls)) == request_id:
                yield self._take()
            elif request_id in self._ended:
                return
            else:
                event.clear()
                await event.wait()

    def collect(self) -> ReplicaUpdate | None:
        """Return what is to be told, if there is anything and no call to carry it."""
        return self._take() if self._has_news and not self._calls else None

    def close(self, request_id: str) -> None:
        """Close the call of a request: the next oldest one carries what is told from then on."""
        del self._calls[request_id]
        self._ended.discard(request_id)
        self._wake_carrier()

    def _take(self) -> ReplicaUpdate:
        told = self.pending.told(self._number)
        self._number += 1
        self.pending = Pending()
        self._has_news = False
        return told

    def _wake_carrier(self) -> None:
        if self._has_news and self._calls:
            next(iter(self._calls.values())).set()
