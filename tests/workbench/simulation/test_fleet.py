"""Invariants of several simulated engines: together, and with prefill and decode apart."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cache.config import CacheConfig
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.reasons import Reason
from quire.workbench.simulation.cost.cost_file import ServerCost, StepCoefficients
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.simulation import (
    Costs,
    EngineSetup,
    SimLoad,
    Simulation,
    SimulationResult,
)
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest
from quire.workbench.simulation.virtual.fleet import FleetSize
from quire.workbench.simulation.virtual.sending import LATENCY_S, LinkSpeed
from quire.workbench.simulation.virtual.virtual_engine import StepTimes
from tests.profiles import cases
from tests.workbench.simulation.shapes import costs, engines, loads

TOKEN_BYTES = 1000
BLOCK_SIZE = 16
LARGE = EngineSetup(SchedulerConfig(64, 4096, 4096, 1000), CacheConfig(1000, BLOCK_SIZE))
PLAIN = Costs(FittedCost(StepCoefficients(0.01, (), (0.001,))))
FAST = LinkSpeed(1e9, TOKEN_BYTES)


@st.composite
def sizes(draw: st.DrawFn) -> FleetSize:
    """Fleets of up to five engines, some of them with engines for prompts."""
    num_engines = draw(st.integers(1, 5))
    num_prefill = draw(st.integers(0, num_engines - 1))
    speed = LinkSpeed(draw(st.sampled_from((1e3, 1e6, 1e12))), TOKEN_BYTES)
    return FleetSize(num_engines, num_prefill, speed)


@given(engines(), costs(), loads(), sizes())
def test_every_request_ends_once_with_all_its_tokens(
    engine: EngineSetup, costs: Costs, load: SimLoad, size: FleetSize
) -> None:
    steps: list[StepTimes] = []
    done = Simulation(engine, costs, load, on_step=steps.append, size=size).run()
    assert all(a.began_s <= b.began_s for a, b in pairwise(steps))
    assert [each.request.id for each in done.clients.answers] == [it.id for it in load.requests]
    assert done.clients.num_ended == len(load.requests) and done.num_steps == len(steps)
    for each in done.clients.answers:
        assert each.reason is Reason.MAX_TOKENS
        assert each.num_output_tokens == each.request.num_output_tokens
        assert each.first_s is not None and each.sent_s <= each.first_s <= each.last_s
    assert all(gap_s >= 0 for gap_s in done.clients.gaps_s)


@cases(50)
@given(engines(), costs(), loads(), sizes())
def test_all_blocks_are_home_and_equal_seeds_agree(
    engine: EngineSetup, costs: Costs, load: SimLoad, size: FleetSize
) -> None:
    done, again = (Simulation(engine, costs, load, 3, size=size).run() for _ in range(2))
    assert done.stats.num_running == done.stats.num_waiting == done.stats.num_blocks_active == 0
    assert done.clients.gaps_s == again.clients.gaps_s and done.sent == again.sent
    num_blocks = size.num_engines * (engine.cache.num_blocks - 1)
    assert done.stats.num_blocks_free + done.stats.num_blocks_cached == num_blocks
    assert done.sent.num_bytes == done.sent.num_tokens * TOKEN_BYTES
    assert (size.num_prefill > 0) or not done.sent.num_bytes


@cases(50)
@given(engines(), costs(), loads(), st.integers(0, 4))
def test_with_an_engine_for_each_nobody_waits_for_another(
    engine: EngineSetup, costs: Costs, load: SimLoad, more: int
) -> None:
    """Requests that come at once, to as many engines: each has the times it has alone."""
    at_once = [replace(each, sent_s=0.0) for each in load.requests]
    alike = replace(costs, server=ServerCost(), ratios=())
    size = FleetSize(len(at_once) + more)
    done = Simulation(engine, alike, SimLoad(at_once), size=size).run()
    for request, answer in zip(at_once, done.clients.answers, strict=True):
        alone = Simulation(engine, alike, SimLoad([request])).run().clients.answers[0]
        assert (answer.first_s, answer.last_s) == (alone.first_s, alone.last_s)


def _of_one(num_prompt: int, num_output: int, size: FleetSize) -> SimulationResult:
    request = TracedRequest("a", 0.0, (PromptPart(1, num_prompt),), num_output)
    return Simulation(LARGE, PLAIN, SimLoad([request]), size=size).run()


@given(st.integers(1, 300), st.integers(1, 5))
def test_a_prompt_is_computed_sent_and_continued(num_prompt: int, num_output: int) -> None:
    done = _of_one(num_prompt, num_output, FleetSize(2, 1, FAST))
    (answer,) = done.clients.answers
    num_sent = (num_prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert done.sent.num_tokens == answer.num_cached_tokens == num_sent
    sending_s = LATENCY_S + num_sent * TOKEN_BYTES / FAST.bytes_s if num_sent else 0.0
    computing_s = 0.01 + 0.001 * num_prompt
    the_rest_s = 0.01 + 0.001 * (num_prompt - num_sent)
    assert answer.first_s is not None
    assert answer.first_s == pytest.approx(computing_s + sending_s + the_rest_s)
    assert answer.last_s - answer.first_s == pytest.approx((num_output - 1) * 0.011)


def test_one_link_sends_one_prompt_after_another() -> None:
    slow = LinkSpeed(1e6, TOKEN_BYTES)
    requests = [TracedRequest(f"r{n}", 0.0, (PromptPart(n, 129),), 2) for n in range(3)]
    done = Simulation(LARGE, PLAIN, SimLoad(requests), size=FleetSize(2, 1, slow)).run()
    one_s = LATENCY_S + 128 * TOKEN_BYTES / slow.bytes_s
    assert list(done.sent.seconds) == pytest.approx([one_s, 2 * one_s, 3 * one_s])


def test_what_is_there_already_is_not_sent_again() -> None:
    shared = PromptPart(7, 64)
    requests = [
        TracedRequest(f"r{n}", float(n), (shared, PromptPart(100 + n, 17)), 2) for n in range(4)
    ]
    done = Simulation(LARGE, PLAIN, SimLoad(requests), size=FleetSize(2, 1, FAST)).run()
    assert done.sent.num_tokens == 64 + 4 * 16


def test_a_link_slower_than_computing_is_not_used_once_that_is_known() -> None:
    requests = [TracedRequest(f"r{n}", 10.0 * n, (PromptPart(n, 129),), 2) for n in range(3)]
    never = LinkSpeed(TOKEN_BYTES * 10, TOKEN_BYTES)  # ten tokens a second
    done = Simulation(LARGE, PLAIN, SimLoad(requests), size=FleetSize(2, 1, never)).run()
    assert done.sent.num_declined > 0
    assert done.clients.num_ended == 3


def test_a_prompt_that_no_engine_takes_is_refused() -> None:
    long = TracedRequest("long", 0.0, (PromptPart(1, 5000),), 5)
    done = Simulation(LARGE, PLAIN, SimLoad([long]), size=FleetSize(3, 1, FAST)).run()
    assert [each.is_refused for each in done.clients.answers] == [True]
