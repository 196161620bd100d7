"""Loads, costs and engines that property tests draw."""

from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.policy import PolicyName, QueueOrder
from quire.workbench.simulation.cost.cost_file import GapCost, ServerCost, StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.simulation import Costs, EngineSetup, SimLoad
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest

MAX_MODEL_LEN = 48
SECONDS = st.sampled_from((0.0, 0.001, 0.004, 0.03))


@st.composite
def loads(draw: st.DrawFn) -> SimLoad:
    """Requests whose prompts begin alike and end each on its own, some sent together."""
    requests, now = [], 0.0
    for number in range(draw(st.integers(1, 12))):
        shared = PromptPart(draw(st.integers(0, 1)), draw(st.integers(1, 12)))
        own = PromptPart(100 + number, draw(st.integers(1, 14)))
        now += draw(SECONDS)
        requests.append(
            TracedRequest(
                f"r{number}",
                now,
                (shared, own),
                draw(st.integers(1, 20)),
                priority=draw(st.integers(0, 2)),
                tenant=draw(st.sampled_from(("a", "b"))),
            )
        )
    return SimLoad(requests, draw(st.sampled_from((0, 0, 3))))


@st.composite
def engines(draw: st.DrawFn) -> EngineSetup:
    """Engines that are short of blocks, sequences or tokens."""
    num_seqs = draw(st.integers(1, 6))
    scheduler = SchedulerConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + draw(st.integers(0, 30)),
        max_model_len=MAX_MODEL_LEN,
        max_num_queued_reqs=100,
        scheduling_policy=draw(st.sampled_from(PolicyName)),
        queue_order=draw(st.sampled_from(QueueOrder)),
    )
    cache = CacheConfig(draw(st.integers(14, 40)), 4)
    return EngineSetup(scheduler, cache, draw(st.booleans()))


@st.composite
def step_costs(draw: st.DrawFn) -> FittedCost:
    """Costs of steps, some of which make steps take no time but for their tokens."""
    base_s, token_s = draw(SECONDS), draw(st.sampled_from((1e-4, 2e-3)))
    return FittedCost(StepCoefficients(base_s, (4,), (token_s, token_s / 2), context_token_s=1e-5))


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    """Costs of steps and of all around them."""
    gap = GapCost(draw(SECONDS), draw(st.sampled_from((0.0, 1e-4))))
    server = ServerCost(draw(SECONDS), draw(SECONDS), draw(SECONDS), draw(SECONDS))
    return Costs(draw(step_costs()), gap, server, draw(st.sampled_from(((), (0.5, 1.0, 3.0)))))
