"""Simulations: the limits of an engine, the costs of its steps, requests; and their run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Stats
from quire.simulation.cost.cost_file import EngineShape, GapCost, ServerCost
from quire.simulation.cost.step_cost import StepCost
from quire.simulation.traces.traced_request import TracedRequest
from quire.simulation.virtual.arrivals import Arrivals, ClosedLoop, OpenLoop
from quire.simulation.virtual.clients import Clients
from quire.simulation.virtual.device import CostedDevice, Device
from quire.simulation.virtual.virtual_engine import StepTimes, VirtualEngine

NUM_BETWEEN = 512
"""After so many steps progress is told."""


class Load(NamedTuple):
    """Requests in the order in which they are sent: at their times, or by `concurrency` clients
    that each wait for their answer, unless that is 0."""

    requests: Sequence[TracedRequest]
    concurrency: int = 0

    def arrivals(self) -> Arrivals:
        if self.concurrency:
            return ClosedLoop(self.requests, self.concurrency)
        return OpenLoop(self.requests)


@dataclass(frozen=True, slots=True)
class Costs:
    """The times of a simulation: of steps, times one of `ratios` each, of the gaps between them, of
    the server."""

    step: StepCost
    gap: GapCost = GapCost()
    server: ServerCost = ServerCost()
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The scheduler and the cache of a simulated engine, and whether its steps overlap."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    is_overlapped: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of a simulation: what clients had, the scheduler's counters, and how many steps
    were taken in how many seconds of the simulated clock."""

    clients: Clients
    stats: Stats
    num_steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulation that can be run, always with the same outcome."""

    engine: EngineSetup
    costs: Costs
    load: Load
    seed: int = 0
    on_step: Callable[[StepTimes], None] = field(default=lambda _: None)

    def run(self, on_progress: Callable[[int], None] = lambda _: None) -> Simulated:
        """Return the outcome; `on_progress` is told now and then how many requests have ended."""
        costs = self.costs
        device = CostedDevice(costs.step, costs.gap, costs.ratios, self.seed)
        return self.run_on(device, costs.server, on_progress)

    def run_on(
        self,
        device: Device,
        server: ServerCost,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Simulated:
        """Return the outcome on another device and server than those of the costs."""
        scheduler = Scheduler(self.engine.scheduler, KVCache(self.engine.cache))
        clients = Clients(self.load.arrivals(), server)

        def note_step(times: StepTimes) -> None:
            self.on_step(times)
            if times.step.number % NUM_BETWEEN == 0:
                on_progress(clients.num_ended)

        engine = VirtualEngine(
            scheduler,
            device,
            clients,
            is_overlapped=self.engine.is_overlapped,
            on_step=note_step,
        )
        engine.run(self.seed)
        return Simulated(clients, scheduler.stats, engine.num_steps, max(engine.now, 0.0))


def setup_of(shape: EngineShape, scheduler: SchedulerConfig) -> EngineSetup:
    """Return the engine of a shape, with this scheduler."""
    cache = CacheConfig(
        shape.num_blocks, shape.block_size, max_chunk_tokens=scheduler.max_num_batched_tokens
    )
    return EngineSetup(scheduler, cache, shape.is_overlapped)


def scheduler_of(shape: EngineShape) -> SchedulerConfig:
    """Return the scheduler of a shape, with a queue that refuses nobody."""
    return SchedulerConfig(
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
        max_num_queued_reqs=1 << 30,
    )
