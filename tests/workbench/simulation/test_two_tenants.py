"""A tenant that asks for little beside one that asks for more than there is: it waits for the steps
that are launched, its own, and for no other prompt."""

import random
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from quire.scheduler.policy import PolicyName
from quire.scheduler.urgency.urgency import Urgency
from quire.workbench.simulation.cost.cost_file import load_cost
from quire.workbench.simulation.cost.fitted import FittedCost
from quire.workbench.simulation.simulation import (
    Costs,
    SimLoad,
    Simulation,
    scheduler_of,
    setup_of,
)
from quire.workbench.simulation.traces.traced_request import PromptPart, TracedRequest
from quire.workbench.simulation.virtual.virtual_engine import StepTimes

SECONDS, FULL_AFTER_S = 30.0, 5.0
RATE = 2.5
"""Requests a second of the light tenant; the other sends ten times as many."""
PROMPT, OUTPUT = 256, 64
"""Mean tokens of the light tenant; the prompts of the other have eight times as many."""


class Waits(NamedTuple):
    """The 95th percentile of the light tenant's seconds to a first token, and the longest step."""

    p95_s: float
    step_s: float


def tenant(name: str, rate: float, prompt: int, weight: float) -> list[TracedRequest]:
    draw, now = random.Random(name), 0.0
    requests: list[TracedRequest] = []
    while (now := now + draw.expovariate(rate)) < SECONDS:
        size = int(prompt * draw.uniform(0.5, 1.5))
        part = PromptPart(draw.randrange(1 << 30), size)
        num_outputs = int(OUTPUT * draw.uniform(0.5, 1.5))
        number = len(requests)
        requests.append(
            TracedRequest(f"{name}{number}", now, (part,), num_outputs, tenant=name, weight=weight)
        )
    return requests


LIGHT = tenant("light", RATE, PROMPT, 1.0)
HEAVY = tenant("heavy", 10 * RATE, 8 * PROMPT, 3.0)


def simulate(
    requests: list[TracedRequest], *, itl_s: float | None = None, is_overlapped: bool = True
) -> Waits:
    cost = load_cost("h100-8b")
    scheduler = replace(scheduler_of(cost.engine), scheduling_policy=PolicyName.FAIR)
    setup = replace(setup_of(cost.engine, scheduler), is_overlapped=is_overlapped)
    load = SimLoad(
        [replace(r, target_itl_s=itl_s) for r in sorted(requests, key=lambda r: r.sent_s)]
    )
    steps: list[StepTimes] = []
    costs = Costs(FittedCost(cost.step), cost.gap, cost.server)
    done = Simulation(setup, costs, load, on_step=steps.append).run()
    began_s = [max(b.began_s, a.ended_s) for a, b in zip(steps, steps[1:], strict=False)]
    step_s = max(step.ended_s - s for step, s in zip(steps[1:], began_s, strict=True))
    waits = [
        each.first_s - each.sent_s
        for each in done.clients.answers
        if each.request.tenant == "light" and each.sent_s > FULL_AFTER_S
        if each.first_s is not None
    ]
    return Waits(float(np.percentile(waits, 95)), step_s)


@pytest.fixture(scope="module")
def idle() -> Waits:
    return simulate(LIGHT)


@pytest.mark.parametrize("itl_s", [None, 0.05])
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_light_tenant_waits_for_the_steps_that_are_launched(
    idle: Waits, itl_s: float | None, *, is_overlapped: bool
) -> None:
    waits = simulate(LIGHT + HEAVY, itl_s=itl_s, is_overlapped=is_overlapped)
    num_launched = 1 + is_overlapped
    assert waits.p95_s <= idle.p95_s + (num_launched + 1) * waits.step_s
    if itl_s is not None:
        assert waits.p95_s <= 1.05 * (2 * idle.p95_s + num_launched * waits.step_s)


def test_it_would_wait_for_a_prompt_that_is_begun(
    idle: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Urgency, "_passes", lambda _urgency, _claimant, _running: False)
    waits = simulate(LIGHT + HEAVY)
    assert waits.p95_s > idle.p95_s + 3 * waits.step_s
