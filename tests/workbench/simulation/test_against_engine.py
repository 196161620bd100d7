"""A simulation schedules step for step what the engine does, given the same times of steps."""

import random
from collections.abc import Sequence

from hypothesis import given

from quire.cache.kv_cache import KVCache
from quire.engine.engine import Engine
from quire.engine.launched_step import LaunchedStep
from quire.engine.runner import Runner, RunnerConfig
from quire.models.config import KVSize
from quire.models.toy import ToyModel
from quire.scheduler.pacing.step_work import work_of
from quire.scheduler.request import NewRequest, Sampling, Stopping
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.step import Step, StepResult
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.simulation import Costs, EngineSetup, SimLoad, Simulation
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest
from quire.workbench.simulation.virtual.virtual_engine import StepTimes
from tests.profiles import cases
from tests.workbench.simulation.shapes import MAX_MODEL_LEN, engines, loads, step_costs

VOCAB_SIZE = 1024


class ClockedRunner(Runner):
    """A runner of the toy model over a device that computes beside the host: a step ends when the
    cost says, and who collects it waits until then."""

    def __init__(self, engine: EngineSetup, cost: FittedCost) -> None:
        cache, scheduler = engine.cache, engine.scheduler
        num_blocks = -(-MAX_MODEL_LEN // cache.block_size)
        config = RunnerConfig(scheduler.max_num_seqs, num_blocks, cache.block_size, "cpu")
        size = KVSize(cache.num_blocks, cache.block_size)
        super().__init__(config, ToyModel(VOCAB_SIZE, size))
        self.now = 0.0
        self.steps: list[tuple[Step, float]] = []
        self._cost = cost
        self._ends_s: dict[int, float] = {}
        self._last_s = 0.0

    def launch(self, step: Step) -> LaunchedStep:
        self.steps.append((step, self.now))
        self._last_s = max(self.now, self._last_s) + self._cost.step_s(work_of(step))
        self._ends_s[step.number] = self._last_s
        return super().launch(step)

    def collect(self, launched: LaunchedStep) -> StepResult:
        self.now = max(self.now, self._ends_s.pop(launched.step.number))
        return super().collect(launched)


def prompt_of(parts: Sequence[PromptPart]) -> tuple[int, ...]:
    """The toy's tokens: equal where the parts are."""
    return tuple(
        token
        for part in parts
        for token in random.Random(part.content).choices(range(VOCAB_SIZE), k=part.num_tokens)
    )


def request_of(traced: TracedRequest) -> NewRequest:
    return NewRequest(
        traced.id,
        prompt_of(traced.parts),
        Sampling(temperature=0.0),
        Stopping(traced.num_output_tokens),
        tenant=traced.tenant,
        priority=traced.priority,
    )


def run_engine(
    setup: EngineSetup, cost: FittedCost, requests: Sequence[TracedRequest]
) -> list[object]:
    """The steps of a real engine, with the times at which it began them."""
    runner = ClockedRunner(setup, cost)
    scheduler = Scheduler(setup.scheduler, KVCache(setup.cache))
    engine = Engine(scheduler, runner, lambda: runner.now, is_overlapped=setup.is_overlapped)
    waiting = list(requests)
    while waiting or engine.has_work:
        if not engine.has_work:
            runner.now = max(runner.now, waiting[0].sent_s)
        while waiting and waiting[0].sent_s <= runner.now:
            assert engine.submit(request_of(waiting.pop(0))) is None
        engine.step()
    return [decided(step, began_s) for step, began_s in runner.steps]


def decided(step: Step, began_s: float) -> tuple[object, ...]:
    """All that the scheduler decided, but for the tokens."""
    new = [(each.request.id, len(each.token_ids), each.block_ids) for each in step.new_requests]
    return step.number, began_s, step.chunks, new, step.finished_requests


@cases(50)
@given(engines(), step_costs(), loads())
def test_a_simulation_schedules_what_the_engine_does(
    setup: EngineSetup, cost: FittedCost, load: SimLoad
) -> None:
    steps: list[StepTimes] = []
    open_loop = load._replace(concurrency=0)
    Simulation(setup, Costs(cost), open_loop, on_step=steps.append).run()
    simulated = [decided(each.step, each.began_s) for each in steps]
    assert simulated == run_engine(setup, cost, load.requests)
