"""Invariants of simulations: time goes on, every request ends once, equal seeds agree."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.workbench.simulation.cost.cost_file import StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.figures import Objective, figures_of
from quire.workbench.simulation.simulation import Costs, EngineSetup, SimLoad, Simulation
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest
from quire.workbench.simulation.virtual.virtual_engine import StepTimes
from tests.workbench.simulation.shapes import costs, engines, loads


@given(engines(), costs(), loads())
def test_time_goes_on_and_every_request_ends_once(
    engine: EngineSetup, costs: Costs, load: SimLoad
) -> None:
    steps: list[StepTimes] = []
    done = Simulation(engine, costs, load, on_step=steps.append).run()
    assert all(each.began_s <= each.ended_s for each in steps)
    assert all(a.began_s <= b.began_s and a.ended_s <= b.ended_s for a, b in pairwise(steps))
    answers = done.clients.answers
    assert [each.request.id for each in answers] == [each.id for each in load.requests]
    assert done.clients.num_ended == len(load.requests) and done.num_steps == len(steps)
    for each in answers:
        assert each.reason is Reason.MAX_TOKENS
        assert each.num_output_tokens == each.request.num_output_tokens
        assert each.first_s is not None
        assert each.sent_s <= each.first_s <= each.last_s
    assert all(gap_s >= 0 for gap_s in done.clients.gaps_s)
    num_tokens = sum(each.num_output_tokens for each in answers)
    assert len(done.clients.gaps_s) == num_tokens - len(answers)


@settings(max_examples=30)
@given(engines(), costs(), loads(), st.integers(0, 9))
def test_equal_seeds_give_equal_reports(
    engine: EngineSetup, costs: Costs, load: SimLoad, seed: int
) -> None:
    simulation = Simulation(engine, costs, load, seed)
    first, second = (figures_of(simulation.run(), Objective(first_token_ms=9)) for _ in range(2))
    assert first == second


@settings(max_examples=30)
@given(engines(), costs(), loads())
def test_an_output_that_ends_early_takes_as_many_tokens(
    engine: EngineSetup, costs: Costs, load: SimLoad
) -> None:
    requests = [replace(each, max_tokens=each.num_output_tokens + 1) for each in load.requests]
    done = Simulation(engine, costs, load._replace(requests=requests)).run()
    for each in done.clients.answers:
        assert each.num_output_tokens == each.request.num_output_tokens
        assert each.reason is Reason.END_OF_SEQUENCE


@settings(max_examples=10)
@given(engines(), costs())
def test_a_request_that_never_fits_is_refused_and_told(engine: EngineSetup, costs: Costs) -> None:
    long = TracedRequest("long", 0.0, (PromptPart(1, 100),), 5)
    done = Simulation(engine, costs, SimLoad([long, replace(long, id="b")], 1)).run()
    assert [each.is_refused for each in done.clients.answers] == [True, True]
    figures = figures_of(done, Objective(end_to_end_ms=1e9))
    assert figures.num_refused == 2 and figures.good_share == 0.0
    assert figures.first_token.p50_ms is None


def test_equal_parts_of_prompts_are_found_in_the_cache() -> None:
    shared = PromptPart(7, 64)
    requests = [
        TracedRequest(f"r{n}", float(n), (shared, PromptPart(100 + n, 16)), 2) for n in range(4)
    ]
    engine = EngineSetup(SchedulerConfig(8, 64, 256, 100), CacheConfig(200, 16))
    tenth = Costs(FittedCost(StepCoefficients(0.1, (), (0.0,))))
    done = Simulation(engine, tenth, SimLoad(requests), seed=3).run()
    assert done.stats.num_prefix_hits == 3 * 64
    assert [each.num_cached_tokens for each in done.clients.answers] == [0, 64, 64, 64]
