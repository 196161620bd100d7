"""A request that breaks what computes it, beside others: it alone may fail, and is told why."""

import asyncio
import random
from dataclasses import dataclass

from tests.chaos.answers import Answer, answer_of
from tests.chaos.checkpoints import ABORT, HANG, MEMORY, NAN, RAISE
from tests.chaos.injectors import beats
from tests.chaos.kills import Outcome, at_rest
from tests.chaos.load import Load, faults, not_right, put
from tests.chaos.metrics import joined
from tests.chaos.mix import Ask, with_tokens
from tests.chaos.subject import Subject
from tests.chaos.watch import watching
from tests.chaos.wire import Pulse, exchange

NUM_OTHERS, LENGTH = 20, 120
CRASHES = "request_crashes_engine"
RESTARTS = "quire:engine_restarts_total"


@dataclass(frozen=True, slots=True)
class Poison:
    """A token that breaks the engine: the code of the error that its request gets, and how many
    engines it may cost until it is found."""

    token: int
    code: str
    most_restarts: int


POISONS = {
    "abort": Poison(ABORT, CRASHES, 7),
    "hang": Poison(HANG, CRASHES, 7),
    "nan": Poison(NAN, "not_finite", 0),
    "raise": Poison(RAISE, "step_failed", 0),
    "memory": Poison(MEMORY, "step_failed", 0),
}


def poisoned(subject: Subject, name: str, draw: random.Random) -> Outcome:
    """Put a request with the token beside others that run, and put it once more when it is known:
    then it costs no engine."""
    poison = POISONS[name]
    others = with_tokens(NUM_OTHERS, [], draw, LENGTH)
    (guilty,) = with_tokens(1, [poison.token], draw, LENGTH)
    calm = put(subject.url, others)
    outcome = Outcome(f"poison: {name}", breaches=not_right(calm))
    if outcome.breaches:
        return outcome
    before = subject.metrics()
    with watching(subject) as watch:
        seen, first = _beside(subject, others, guilty, at=len(calm.pulse.beats_s) // 10)
        subject.wait_engine()
        met = subject.metrics()
        again = answer_of(asyncio.run(exchange(subject.url, guilty, Pulse())))
        subject.wait_engine()
    outcome.num_answers = len(seen.replies)
    outcome.num_disturbances = int(met.sum(RESTARTS) - before.sum(RESTARTS))
    if outcome.num_disturbances > poison.most_restarts:
        outcome.breaches.append(f"{outcome.num_disturbances} restarts until it was found")
    if subject.metrics().sum(RESTARTS) != met.sum(RESTARTS):
        outcome.breaches.append("put again it ended another engine")
    outcome.breaches += joined(
        faults(calm, seen, subject.judge),
        _unlike(first, poison),
        _unlike(again, poison),
        watch.breaches,
        at_rest(subject),
    )
    return outcome


def _beside(subject: Subject, others: list[Ask], guilty: Ask, *, at: int) -> tuple[Load, Answer]:
    """Return the answers to the others, and to the guilty one that comes when so many parts of
    streams have come."""
    answers: list[Answer] = []

    async def disturb(pulse: Pulse) -> None:
        await beats(pulse, at)
        answers.append(answer_of(await exchange(subject.url, guilty, Pulse())))

    seen = put(subject.url, others, disturb)
    return seen, answers[0] if answers else Answer(0, fault="no answer came")


def _unlike(answer: Answer, poison: Poison) -> list[str]:
    if answer.error.startswith(f"{poison.code}: ") and not answer.fault:
        return []
    return [f"the guilty one got {answer.status} {answer.error!r} {answer.fault}"]
