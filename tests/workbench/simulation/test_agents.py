"""Traces of agents: turns that begin with all that was said, each after the answer before."""

import random
from dataclasses import replace

import pytest

from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.workbench.simulation.cost.cost_file import StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.figures import Objective, SimFigures, figures_of
from quire.workbench.simulation.simulation import (
    Costs,
    EngineSetup,
    SimLoad,
    Simulation,
    SimulationResult,
)
from quire.workbench.simulation.traces.shapes import GAPS_S, gap_s, parse_shape, requests_of
from quire.workbench.simulation.traces.trace_error import TraceError

SHAPE = "agents:rate=40,turns=6,requests=24,shared=64,prompt=20-60,growth=30-90,output=4-20"
SCHEDULER = SchedulerConfig(64, 2048, 4096, 1000)
COSTS = Costs(FittedCost(StepCoefficients(0.002, (), (0.001,))))


def run(num_blocks: int, *, keeps: bool = True, seed: int = 0) -> SimulationResult:
    engine = EngineSetup(replace(SCHEDULER, keep_sessions=keeps), CacheConfig(num_blocks, 16))
    load = SimLoad(requests_of(parse_shape(SHAPE), seed))
    return Simulation(engine, COSTS, load, seed).run()


def figures(done: SimulationResult) -> SimFigures:
    return figures_of(done, Objective())


def test_equal_seeds_give_equal_sessions() -> None:
    shape = parse_shape(SHAPE)
    assert requests_of(shape, 3) == requests_of(shape, 3) != requests_of(shape, 4)
    assert all(len(each.later) == 5 for each in requests_of(shape, 3))


def test_gaps_are_those_that_were_published() -> None:
    draw = random.Random(1)
    gaps = sorted(gap_s(draw) for _ in range(20_000))
    for share, _, most_s in GAPS_S:
        assert sum(each <= most_s for each in gaps) / len(gaps) == pytest.approx(share, abs=0.01)


def test_each_turn_begins_with_what_was_said() -> None:
    done = run(4000)
    answers = {each.request.id: each for each in done.clients.answers}
    assert len(answers) == 24 * 6
    for name, answer in answers.items():
        session, _, number = name.rpartition(".")
        if number == "0":
            continue
        before = answers[f"{session}.{int(number) - 1}"]
        prompt = before.request.new_request(0).prompt_token_ids
        assert answer.request.before == (*prompt, *before.outputs)
        assert len(before.outputs) == before.request.num_output_tokens
        gap = before.request.later[0].gap_s
        assert answer.sent_s == pytest.approx(before.last_s + gap)


def test_with_enough_memory_all_that_was_said_is_found() -> None:
    """But the last output token, and what fills no block."""
    for answer in run(4000).clients.answers:
        num_said = len(answer.request.before)
        if num_said:
            assert answer.num_cached_tokens >= num_said - 16
    assert figures(run(4000, keeps=False)).hit_rate == figures(run(4000)).hit_rate


@pytest.mark.parametrize("seed", range(3))
def test_with_little_memory_more_is_found_sooner_where_sessions_are_kept(seed: int) -> None:
    kept, plain = (figures(run(240, keeps=keeps, seed=seed)) for keeps in (True, False))
    assert kept.hit_rate > 1.2 * plain.hit_rate
    assert kept.num_turns_kept and not plain.num_turns_kept
    assert (kept.num_requests, kept.num_refused) == (plain.num_requests, 0)


def test_a_shape_of_agents_says_its_turns() -> None:
    with pytest.raises(TraceError, match="agents needs rate and turns"):
        parse_shape("agents:requests=3")
    with pytest.raises(TraceError, match="poisson has no 'growth'"):
        parse_shape("poisson:rate=3,growth=5")
