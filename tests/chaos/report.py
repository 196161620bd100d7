"""Writes what came of a run, for a terminal and as JSON."""

import statistics
from pathlib import Path

from bench.machine import read_commit, read_machine

from tests.chaos.kills import Outcome
from tests.chaos.storm import STORM

ROOT = Path(__file__).parents[2]

AIM_S, MOST_S = 2.0, 3.0
"""Without service after a kill: what is aimed at, and what is promised."""
SHOWN = 10
HEAD = (
    "| what happens | times | answers | unlike undisturbed | without service, s: median | longest "
    "| within 3 s |\n|---|---|---|---|---|---|---|"
)


def where() -> str:
    """Return the machine and the commit that figures are of."""
    machine = read_machine()
    return f"{machine.num_cores} cores of {machine.cpu}, {read_commit(ROOT)}"


def lengths_s(outcome: Outcome) -> list[float]:
    """Return the times without service, less the wait for an engine that hangs."""
    return [length - outcome.bound_s for length in outcome.outages_s]


def is_late(outcome: Outcome) -> bool:
    """Return whether one was longer than promised. In a storm engines are killed while they load,
    and models unloaded: nothing is promised of that."""
    return outcome.name != STORM and any(length > MOST_S for length in lengths_s(outcome))


def row(outcome: Outcome) -> str:
    """Return a row of the table."""
    lengths = lengths_s(outcome)
    within = sum(length <= MOST_S for length in lengths)
    cells = (
        outcome.name,
        str(outcome.num_disturbances),
        str(outcome.num_answers),
        str(len(outcome.breaches)),
        f"{statistics.median(lengths):.2f}" if lengths else "-",
        f"{max(lengths):.2f}" if lengths else "-",
        f"{within} of {len(lengths)}" if lengths else "-",
    )
    return f"| {' | '.join(cells)} |"


def details(outcome: Outcome) -> str:
    """Return each time without service, and what did not hold."""
    times = ", ".join(f"{length:.2f}" for length in outcome.outages_s)
    lines = [f"  without service: {times} s"] if times else []
    if outcome.num_comments:
        lines.append(f"  comment lines in streams: {outcome.num_comments}")
    if outcome.num_ties:
        lines.append(f"  answers that differ from a rounding tie on: {outcome.num_ties}")
    if outcome.notes:
        lines.append(f"  {outcome.notes}")
    lines += [f"  BREACH {each[:600]}" for each in outcome.breaches[:SHOWN]]
    return "\n".join(lines)
