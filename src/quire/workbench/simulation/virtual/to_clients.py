"""The front of engines whose requests are clients' own."""

from collections.abc import Callable, Sequence

from quire.scheduler.reasons import Reason
from quire.scheduler.step import Delta
from quire.workbench.simulation.virtual.clients import Clients
from quire.workbench.simulation.virtual.pool import EnginePool
from quire.workbench.simulation.virtual.virtual_engine import StepTimes

OnStep = Callable[[StepTimes], None]


class ClientForwarder:
    """Hears the engines of `pool`, and brings what they say to `clients`."""

    def __init__(self, pool: EnginePool, clients: Clients, on_step: OnStep) -> None:
        self.pool = pool
        self.clients = clients
        self._on_step = on_step

    def note_step(self, times: StepTimes) -> None:
        """Tell of a step that was scheduled."""
        self._on_step(times)

    def deliver(self, deltas: Sequence[Delta], ended_s: float) -> None:
        """Bring what a step adds to the outputs to their clients."""
        for delta in deltas:
            if delta.finish is not None:
                self.pool.end(delta.request_id)
        self.clients.deliver(deltas, ended_s)

    def refuse(self, request_id: str, reason: Reason, now: float) -> None:
        """Answer a request that an engine does not take."""
        self.pool.end(request_id)
        self.clients.refuse(request_id, reason, now)
