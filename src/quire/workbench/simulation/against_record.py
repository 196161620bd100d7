"""Holds a simulation against the run that its trace was recorded of."""

from array import array
from itertools import pairwise

from quire.cache.config import CacheConfig
from quire.scheduler.step import Stats, Step
from quire.workbench.simulation.cost.cost_file import EngineShape, ServerCost, StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.recorded import RecordedRun
from quire.workbench.simulation.simulation import (
    Costs,
    EngineSetup,
    SimLoad,
    Simulation,
    SimulationResult,
)
from quire.workbench.simulation.virtual.arrivals import OpenLoop
from quire.workbench.simulation.virtual.clients import Clients, SimulatedAnswer
from quire.workbench.simulation.virtual.device import RecordedDevice, RecordedStep, RecordExhausted
from quire.workbench.simulation.virtual.virtual_engine import StepTimes

NO_COST = Costs(FittedCost(StepCoefficients(0.0, (), (0.0,))))


class ScheduleDiffers(Exception):
    """A simulated step is another than the recorded one; the text says which and how."""


def shape_of(run: RecordedRun) -> EngineShape:
    """Return the limits of the recorded engine."""
    cache, scheduler = run.start.cache, run.start.scheduler
    return EngineShape(
        cache.num_blocks,
        cache.block_size,
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        scheduler.max_model_len,
        run.is_overlapped,
        num_states=cache.num_states,
    )


def engine_of(run: RecordedRun) -> EngineSetup:
    """Return the recorded engine, with an empty cache."""
    shape = run.start.cache
    cache = CacheConfig(
        shape.num_blocks,
        shape.block_size,
        shape.enable_prefix_caching,
        shape.groups,
        shape.max_chunk_tokens,
        shape.num_host_blocks,
        num_states=shape.num_states,
        snapshots=shape.snapshots,
        num_host_states=shape.num_host_states,
    )
    return EngineSetup(run.start.scheduler, cache, run.is_overlapped)


def check_schedule(run: RecordedRun) -> int:
    """Simulate a recorded run with the times of its own steps, and return how many steps computed
    the same tokens of the same requests. Raises ScheduleDiffers at the first that does not."""
    first_s, num_same = run.first_s, 0

    def compare(times: StepTimes) -> None:
        nonlocal num_same
        if num_same < len(run.steps):
            wanted, found = _chunks(run.steps[num_same]), _chunks(times.step)
            if wanted != found:
                raise ScheduleDiffers(
                    f"step {num_same + 1}: recorded {wanted or 'nothing'}, simulated "
                    f"{found or 'nothing'}"
                )
            num_same += 1

    shifted = (RecordedStep(each.began_s - first_s, each.ended_s - first_s) for each in run.times)
    device = RecordedDevice(tuple(shifted))
    simulation = Simulation(engine_of(run), NO_COST, SimLoad(run.requests()), on_step=compare)
    try:
        simulation.run_on([device], ServerCost())
    except RecordExhausted:
        pass
    return num_same


def recorded_outcome(run: RecordedRun) -> SimulationResult:
    """Return what the recorded run did as a simulation has it: times are those of the engine."""
    first_s, requests = run.first_s, run.requests()
    clients = Clients(OpenLoop(requests), ServerCost())
    for request, recorded in zip(requests, run.answers.values(), strict=True):
        times_s = [each - first_s for each in recorded.token_times_s]
        answer = SimulatedAnswer(request, recorded.added_s - first_s)
        if times_s:
            answer.first_s, answer.last_s = times_s[0], times_s[-1]
            answer.num_output_tokens = len(times_s)
            clients.gaps_s.extend(array("d", (b - a for a, b in pairwise(times_s))))
        clients.answers.append(answer)
    seconds = run.times[-1].ended_s - first_s if run.times else 0.0
    return SimulationResult(clients, _stats_within(run), len(run.steps), seconds)


def _stats_within(run: RecordedRun) -> Stats:
    """Return the counters of the run alone, without what was before the record."""
    before, after = run.first_stats, run.stats
    assert before is not None
    after = after or before
    return after._replace(
        num_prefix_hits=after.num_prefix_hits - before.num_prefix_hits,
        num_prefix_queries=after.num_prefix_queries - before.num_prefix_queries,
        num_preemptions=after.num_preemptions - before.num_preemptions,
        num_misses_without_state=after.num_misses_without_state - before.num_misses_without_state,
        num_tokens_without_state=after.num_tokens_without_state - before.num_tokens_without_state,
    )


def _chunks(step: Step) -> list[tuple[str, int, int]]:
    return [(each.request_id, each.start, each.num_tokens) for each in step.chunks]
