"""Clients of every kind, one request after another, and whether each got what it may expect."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.answers import Answer, answer_of, differences, is_beginning
from tests.chaos.mix import Ask
from tests.chaos.subject import Subject
from tests.chaos.wire import Conduct, Pulse, Reply, exchange

UNAVAILABLE, LATE, LATE_CODE = 503, 504, "deadline_exceeded"
MOST_TOLD = 20


class Wish(StrEnum):
    """The wishes beside an answer: none, a place in the line, a deadline, to be cancelled."""

    NONE = "none"
    PRIORITY = "priority"
    DEADLINE = "deadline"
    CANCEL = "cancel"


CONDUCTS = {
    Conduct.PLAIN: 12,
    Conduct.SLOW: 1,
    Conduct.LEAVES: 2,
    Conduct.SHUTS: 1,
    Conduct.BREAKS_OFF: 1,
    Conduct.DEAF: 1,
}
WISHES = {Wish.NONE: 6, Wish.PRIORITY: 2, Wish.DEADLINE: 1, Wish.CANCEL: 1}
"""How often each is drawn, in parts."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request by one client: the undisturbed answer to it, and how the client goes about it."""

    ask: Ask
    calm: Answer
    conduct: Conduct
    wish: Wish


@dataclass(slots=True)
class Visitors:
    """All clients of a run. `num_refusing` counts what is done now to the server because of which
    it may answer 503; `counts` are of visits by how they ended."""

    subject: Subject
    known: Sequence[tuple[Ask, Answer]]
    seed: int
    pulse: Pulse = field(default_factory=Pulse)
    counts: Counter[str] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)
    num_breaches: int = 0
    num_refusing: int = 0
    num_refusals: int = 0
    num_sent: int = 0
    num_unsure: int = 0
    least_ends: int = 0
    most_ends: int = 0
    is_over: bool = False

    async def come(self, number: int) -> None:
        """Make one visit after another, as client of this number, until all is over."""
        draw = random.Random(f"{self.seed} {number}")
        for turn in range(1 << 30):
            if self.is_over:
                return
            await self._visit(self._drawn(draw), f"chaos-{number}-{turn}", draw.uniform(0, 0.5))

    def _drawn(self, draw: random.Random) -> Visit:
        ask, calm = draw.choice(self.known)
        (conduct,) = draw.choices(list(CONDUCTS), list(CONDUCTS.values()))
        (wish,) = draw.choices(list(WISHES), list(WISHES.values()))
        if wish is Wish.PRIORITY:
            ask = ask.but(priority=draw.randint(-3, 3))
        if wish is Wish.DEADLINE:
            ask = ask.but(deadline_ms=draw.randint(50, 4000))
        return Visit(ask, calm, conduct, wish)

    async def _visit(self, visit: Visit, request_id: str, wait_s: float) -> None:
        refusals, refusing = self.num_refusals, self.num_refusing
        asking = asyncio.ensure_future(
            exchange(
                self.subject.url,
                visit.ask,
                self.pulse,
                conduct=visit.conduct,
                request_id=request_id,
            )
        )
        if visit.wish is Wish.CANCEL:
            await asyncio.sleep(wait_s)
            path = f"/v1/requests/{request_id}/cancel"
            await asyncio.to_thread(self.subject.post, path, {})
        reply = await asking
        may_be_refused = bool(refusing or self.num_refusing or self.num_refusals > refusals)
        self._account(visit, reply, may_be_refused)

    def _account(self, visit: Visit, reply: Reply, may_be_refused: bool) -> None:
        answer = answer_of(reply)
        end = ended(visit, answer, may_be_refused)
        if end.startswith("wrong") and self.subject.judge.are_ties(visit.ask, visit.calm, answer):
            end = "as undisturbed, to a rounding tie"
        self.counts[end.partition(":")[0]] += 1
        if end.startswith("wrong"):
            self.num_breaches += 1
            if len(self.breaches) < MOST_TOLD:
                self.breaches.append(f"{visit.ask} ({visit.conduct}, {visit.wish}): {end}")
        self.num_sent += reply.is_sent
        self.num_unsure += not reply.is_sent
        self.most_ends += visit.ask.num_choices
        self.least_ends += visit.ask.num_choices if answer.is_right else 0


def ended(visit: Visit, answer: Answer, may_be_refused: bool) -> str:
    """Say how a visit ended, with "wrong" first where it may not end so."""
    if not is_beginning(visit.calm, answer):
        return f"wrong text: {'; '.join(differences(visit.calm, answer))}"
    if not visit.conduct.wants_all:
        return "left"
    if not differences(visit.calm, answer):
        return "as undisturbed"
    if visit.wish is Wish.DEADLINE and (answer.status == LATE or LATE_CODE in answer.error):
        return "too late"
    if visit.wish is Wish.CANCEL and _is_cancelled(answer):
        return "cancelled"
    if may_be_refused and (answer.status == UNAVAILABLE or answer.error):
        return "refused"
    if visit.conduct is Conduct.SHUTS and answer.fault:
        return "shut"
    return f"wrong: {'; '.join(differences(visit.calm, answer))}"


def _is_cancelled(answer: Answer) -> bool:
    return any(choice.finish_reason == "abort" for choice in answer.choices.values())
