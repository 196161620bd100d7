"""The engine is killed, stopped or crashes again and again under a load; every answer is that of an
undisturbed run."""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.checkpoints import FaultyCheckpoint
from tests.chaos.injectors import POLL_S, beats, engine_of, hit, outages
from tests.chaos.load import Disturbance, Load, faults, not_right, put
from tests.chaos.metrics import Tally, joined, not_idle, unbalanced
from tests.chaos.mix import Ask
from tests.chaos.subject import Subject
from tests.chaos.watch import watching
from tests.chaos.wire import Pulse

LAST_SHARE = 0.9
"""The share of all tokens that have come when the last disturbance is due, at most."""


@dataclass(slots=True)
class Outcome:
    """The end of a run: `breaches` is empty where all held. `outages_s` are the times without
    service, as clients saw them; of these `bound_s` is the wait for an engine that hangs.
    `num_ties` answers differ from a rounding tie on.
    `num_comments` are lines by which streams told a pause; `notes` say what else was done."""

    name: str
    num_answers: int = 0
    num_disturbances: int = 0
    num_comments: int = 0
    num_ties: int = 0
    bound_s: float = 0.0
    outages_s: list[float] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    notes: str = ""


def moments(number: int, num_beats: int, draw: random.Random) -> list[int]:
    """Return numbers of stream parts, ascending, at which something is to happen."""
    return sorted(int(draw.uniform(0.01, LAST_SHARE) * num_beats) for _ in range(number))


Hits = list[float]
"""The moments of hits, which a disturbance notes as it makes them."""
Make = Callable[[Load, Hits], Disturbance]


def killed(subject: Subject, these: list[Ask], number: int, draw: random.Random) -> Outcome:
    """Kill the engine so often, at moments drawn from the whole of the work."""
    return signalled(subject, these, signal.SIGKILL, number, draw)


def signalled(
    subject: Subject, these: list[Ask], sent: signal.Signals, number: int, draw: random.Random
) -> Outcome:
    """Send the engine that serves a signal: one that ends it, or stops it for good."""

    def make(calm: Load, hits: Hits) -> Disturbance:
        due = moments(number, len(calm.pulse.beats_s), draw)

        async def disturb(pulse: Pulse) -> None:
            for each in due:
                await beats(pulse, each)
                hits.append(await hit(subject, sent))

        return disturb

    return disturbed(f"{number} x {sent.name}", subject, these, make)


def crashed(
    subject: Subject,
    checkpoint: FaultyCheckpoint,
    these: list[Ask],
    fault: str,
    steps: list[int],
) -> Outcome:
    """Let the engine do what a fault says in a certain step of its life, one engine after
    another."""

    def make(calm: Load, hits: Hits) -> Disturbance:
        async def disturb(pulse: Pulse) -> None:
            for step in steps:
                checkpoint.plan_fault(step, fault)
                while not checkpoint.is_struck:
                    await asyncio.sleep(POLL_S)
                hits.append(time.monotonic())
                await engine_of(subject)

        return disturb

    return disturbed(f"{len(steps)} x {fault}", subject, these, make)


def disturbed(name: str, subject: Subject, these: list[Ask], make: Make) -> Outcome:
    """Run a load without and with a disturbance, and compare."""
    calm = put(subject.url, these)
    outcome = Outcome(name, breaches=not_right(calm))
    if outcome.breaches:
        return outcome
    before, hits, num_ties = subject.metrics(), Hits(), subject.judge.num_ties
    with watching(subject) as watch:
        seen = put(subject.url, these, make(calm, hits))
        subject.wait_engine()
    outcome.num_answers, outcome.num_disturbances = len(seen.replies), len(hits)
    outcome.num_comments = seen.num_comments
    outcome.outages_s = outages(hits, seen.pulse)
    ends = sum(ask.num_choices for ask in these)
    tally = Tally(len(these), 0, ends, ends)
    outcome.breaches += joined(
        faults(calm, seen, subject.judge),
        watch.breaches,
        at_rest(subject),
        unbalanced(before, subject.metrics(), tally),
    )
    outcome.num_ties = subject.judge.num_ties - num_ties
    return outcome


def at_rest(subject: Subject) -> list[str]:
    """Wait until nothing runs, and say what is held all the same."""
    subject.wait(lambda: not not_idle(subject.metrics()))
    return not_idle(subject.metrics())
