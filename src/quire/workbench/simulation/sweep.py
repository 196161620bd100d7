"""Finds the settings of an engine that keep an objective, and how much load each of them bears.

All combinations of a small grid are simulated. Of each that keeps the objective at the trace's own
rate the greatest rate at which it still does is found by doubling and bisection: more load never
makes it easier.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import msgspec

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.policy import PolicyName
from quire.workbench.simulation.figures import Objective, SimFigures, figures_of
from quire.workbench.simulation.simulation import EngineSetup, Simulation
from quire.workbench.simulation.traces.traced_request import sped_up

MAX_SPEED_UP = 64.0
TOLERANCE = 0.05
"""A rate is found to this share of itself."""


class Settings(msgspec.Struct, frozen=True):
    """One combination of the grid."""

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: PolicyName

    def applied(self, engine: EngineSetup) -> EngineSetup:
        """Return an engine with these settings."""
        scheduler = replace(
            engine.scheduler,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            scheduling_policy=self.policy,
        )
        cache = replace(engine.cache, max_chunk_tokens=self.max_num_batched_tokens)
        return replace(engine, scheduler=scheduler, cache=cache)


class SweepResult(msgspec.Struct, frozen=True):
    """A combination, its figures at the trace's own rate, and how many times that rate it bears: 0
    if not even the rate itself."""

    settings: Settings
    figures: SimFigures
    speed_up: float


def grid_of(config: SchedulerConfig, policies: Sequence[PolicyName]) -> list[Settings]:
    """Return the combinations around a configuration: a quarter, half, once and twice as many
    sequences and tokens, as far as a step has a token for each sequence."""
    seqs = [max(int(config.max_num_seqs * share), 1) for share in (0.25, 0.5, 1, 2)]
    tokens = [max(int(config.max_num_batched_tokens * share), 1) for share in (0.25, 0.5, 1, 2)]
    found = dict.fromkeys(
        Settings(*each) for each in product(seqs, tokens, policies) if each[0] <= each[1]
    )
    return list(found)


def sweep(
    simulation: Simulation,
    grid: Sequence[Settings],
    objective: Objective,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[SweepResult]:
    """Return all combinations, those that bear most first. `on_progress` is told how many are
    done."""
    found = []
    for number, settings in enumerate(grid):
        on_progress(number)
        found.append(_swept(simulation, settings, objective))
    return sorted(found, key=lambda each: (-each.speed_up, -(each.figures.good_share or 0.0)))


def _swept(simulation: Simulation, settings: Settings, objective: Objective) -> SweepResult:
    tried = replace(simulation, engine=settings.applied(simulation.engine))
    figures = _at(tried, 1.0, objective)
    if not _keeps(figures, objective):
        return SweepResult(settings, figures, 0.0)
    if simulation.load.concurrency:
        return SweepResult(settings, figures, 1.0)  # a closed loop has no rate of its own
    least, most = 1.0, 2.0
    while most <= MAX_SPEED_UP and _keeps(_at(tried, most, objective), objective):
        least, most = most, 2 * most
    while least < MAX_SPEED_UP and most - least > TOLERANCE * least:
        middle = (least + most) / 2
        if _keeps(_at(tried, middle, objective), objective):
            least = middle
        else:
            most = middle
    return SweepResult(settings, figures, least)


def _at(simulation: Simulation, times: float, objective: Objective) -> SimFigures:
    load = simulation.load
    faster = load._replace(requests=sped_up(load.requests, times))
    return figures_of(replace(simulation, load=faster).run(), objective)


def _keeps(figures: SimFigures, objective: Objective) -> bool:
    return figures.good_share is not None and figures.good_share >= objective.share


def sweep_rows(swept: Sequence[SweepResult]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of combinations, and its head."""
    yield (
        "policy",
        "max seqs",
        "max batched tokens",
        "within",
        "TTFT p99 ms",
        "ITL p99 ms",
        "bears",
    )
    for each in swept:
        figures, settings = each.figures, each.settings
        first, inter = figures.first_token.p99_ms, figures.inter_token.p99_ms
        yield (
            settings.policy.value,
            str(settings.max_num_seqs),
            str(settings.max_num_batched_tokens),
            f"{figures.good_share or 0.0:.1%}",
            "-" if first is None else f"{first:,.0f}",
            "-" if inter is None else f"{inter:,.1f}",
            f"{each.speed_up:.2f} x the rate" if each.speed_up else "no",
        )
