"""Several engines of a simulation in one clock: whoever is the earliest goes on.

together    a request goes to the engine that has the least to do
apart       to one of those that compute prompts, and from there to one that continues it
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from quire.workbench.simulation.virtual.clients import Clients
from quire.workbench.simulation.virtual.handover import ChainOf, Handover
from quire.workbench.simulation.virtual.pool import EnginePool
from quire.workbench.simulation.virtual.sending import LinkSpeed, TransferTotals
from quire.workbench.simulation.virtual.to_clients import ClientForwarder, OnStep
from quire.workbench.simulation.virtual.virtual_engine import (
    EngineObserver,
    RoutedRequest,
    VirtualEngine,
)

BuildEngine = Callable[[int, EngineObserver], VirtualEngine]
"""Makes the engine of that number, which tells a front what it does."""


class FleetSize(NamedTuple):
    """The number of engines. The first `num_prefill` compute prompts for the others, and send
    their blocks at `speed`; with 0 all do all."""

    num_engines: int = 1
    num_prefill: int = 0
    speed: LinkSpeed | None = None


class Fleet:
    """Runs engines until all requests of the clients have ended."""

    def __init__(
        self,
        size: FleetSize,
        build: BuildEngine,
        chain_of: ChainOf,
        clients: Clients,
        on_step: OnStep,
    ) -> None:
        self._clients = clients
        self._pool = EnginePool()
        to_clients = ClientForwarder(self._pool, clients, on_step)
        self._handover: Handover | None = None
        self.engines: list[VirtualEngine] = []
        if size.num_prefill and size.speed is not None:
            prompts = EnginePool()
            self._handover = Handover(size.speed, chain_of, prompts, to_clients)
            self._build(range(size.num_prefill), build, self._handover, prompts)
        self._build(range(size.num_prefill, size.num_engines), build, to_clients, self._pool)

    def _build(
        self, numbers: range, build: BuildEngine, front: EngineObserver, pool: EnginePool
    ) -> None:
        for number in numbers:
            engine = build(number, front)
            pool.add(engine)
            self.engines.append(engine)

    @property
    def sent(self) -> TransferTotals:
        """The accounts of the blocks that engines have sent each other."""
        return TransferTotals() if self._handover is None else self._handover.sent

    def run(self, seed: int) -> None:
        """Go on until all requests have ended; the seed makes the prompts' tokens."""
        clients, handover = self._clients, self._handover
        while True:
            engine = min(self.engines, key=lambda each: each.next_s)
            due_s = inf if clients.next_s is None else clients.next_s
            arrives_s = inf if handover is None else handover.next_s
            first_s = min(due_s, arrives_s, engine.next_s)
            if first_s == inf:
                return
            if due_s == first_s:
                self._take(due_s, seed)
            elif handover is not None and arrives_s == first_s:
                handover.arrive()
            else:
                engine.go_on()

    def _take(self, now: float, seed: int) -> None:
        """Hand over what engines get by now."""
        for answer in self._clients.take(now):
            request = answer.request
            handed = RoutedRequest(request, request.new_request(seed))
            if self._handover is None:
                self._pool.hand(handed, now)
            else:
                self._handover.begin(handed, now)
