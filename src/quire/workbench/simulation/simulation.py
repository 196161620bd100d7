"""Simulations: the limits of an engine, the costs of its steps, requests; and their run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import NamedTuple

from quire.cache.chain import Chain
from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.pacing.pace import PaceRule
from quire.scheduler.request import NewRequest
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Stats, together
from quire.workbench.simulation.cost.cost_file import EngineShape, GapCost, ServerCost
from quire.workbench.simulation.cost.step_cost import StepCost
from quire.workbench.simulation.traces.traced_request import TracedRequest
from quire.workbench.simulation.virtual.arrivals import Arrivals, ClosedLoop, OpenLoop, Turns
from quire.workbench.simulation.virtual.clients import Clients
from quire.workbench.simulation.virtual.device import CostedDevice, SimulatedDevice
from quire.workbench.simulation.virtual.fleet import Fleet, FleetSize
from quire.workbench.simulation.virtual.sending import TransferTotals
from quire.workbench.simulation.virtual.virtual_engine import (
    EngineObserver,
    StepTimes,
    VirtualEngine,
)

NUM_BETWEEN = 512
"""After so many steps progress is told."""


class SimLoad(NamedTuple):
    """Requests in the order in which they are sent: at their times, or by `concurrency` clients
    that each wait for their answer, or for the last of a session, unless that is 0."""

    requests: Sequence[TracedRequest]
    concurrency: int = 0

    def arrivals(self, seed: int) -> Arrivals:
        """Return the arrivals; the seed is that of the prompts' tokens."""
        first: Arrivals = OpenLoop(self.requests)
        if self.concurrency:
            first = ClosedLoop(self.requests, self.concurrency)
        return Turns(first, seed) if any(each.later for each in self.requests) else first


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
    """The scheduler and the cache of a simulated engine, and whether its steps overlap. `rule_of`
    gives a scheduler another rule for the share of prompts in a step."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    is_overlapped: bool = False
    rule_of: Callable[[Scheduler], PaceRule] | None = None

    def build(self, device: SimulatedDevice, front: EngineObserver) -> VirtualEngine:
        """Return an engine with an empty cache."""
        cache = KVCache(self.cache)
        scheduler = Scheduler(self.scheduler, cache)
        if self.rule_of is not None:
            scheduler.pace = self.rule_of(scheduler)
        return VirtualEngine(scheduler, cache, device, front, is_overlapped=self.is_overlapped)

    def chain_of(self, new: NewRequest) -> Chain:
        """Return the blocks of a prompt that may be found: its last token is always computed."""
        chain = Chain(self.cache.block_hash, self.cache.block_size, new.sharing)
        chain.extend(new.prompt_token_ids[:-1])
        return chain


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a simulation: what clients had, the counters of all engines' schedulers, how
    many steps they took in how many seconds of the simulated clock, and what they sent each
    other."""

    clients: Clients
    stats: Stats
    num_steps: int
    seconds: float
    sent: TransferTotals = field(default_factory=TransferTotals)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulation that can be run, always with the same outcome."""

    engine: EngineSetup
    costs: Costs
    load: SimLoad
    seed: int = 0
    on_step: Callable[[StepTimes], None] = field(default=lambda _: None)
    size: FleetSize = FleetSize()

    def run(self, on_progress: Callable[[int], None] = lambda _: None) -> SimulationResult:
        """Return the outcome; `on_progress` is told now and then how many requests have ended."""
        costs = self.costs
        devices = [
            CostedDevice(costs.step, costs.gap, costs.ratios, self.seed + number)
            for number in range(self.size.num_engines)
        ]
        return self.run_on(devices, costs.server, on_progress)

    def run_on(
        self,
        devices: Sequence[SimulatedDevice],
        server: ServerCost,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> SimulationResult:
        """Return the outcome on other devices and another server than those of the costs."""
        clients, num_steps = Clients(self.load.arrivals(self.seed), server), count(1)

        def note_step(times: StepTimes) -> None:
            self.on_step(times)
            if next(num_steps) % NUM_BETWEEN == 0:
                on_progress(clients.num_ended)

        def build(number: int, front: EngineObserver) -> VirtualEngine:
            return self.engine.build(devices[number], front)

        fleet = Fleet(self.size, build, self.engine.chain_of, clients, note_step)
        fleet.run(self.seed)
        engines = fleet.engines
        return SimulationResult(
            clients,
            reduce(together, (each.stats for each in engines)),
            sum(each.num_steps for each in engines),
            max(0.0, *(each.now for each in engines)),
            fleet.sent,
        )


def setup_of(shape: EngineShape, scheduler: SchedulerConfig) -> EngineSetup:
    """Return the engine of a shape, with this scheduler."""
    cache = CacheConfig(
        shape.num_blocks,
        shape.block_size,
        max_chunk_tokens=scheduler.max_num_batched_tokens,
        num_states=shape.num_states,
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
