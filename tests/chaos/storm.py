"""Everything at once, at random: clients of every kind, and troubles one after another."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.chaos.batch import Batch, begin, wrongs
from tests.chaos.injectors import outages
from tests.chaos.kills import Outcome, at_rest
from tests.chaos.load import not_right, put
from tests.chaos.metrics import Tally, joined, unbalanced
from tests.chaos.mix import asks
from tests.chaos.subject import Subject
from tests.chaos.troubles import TROUBLES, Trouble
from tests.chaos.visits import Visitors
from tests.chaos.watch import watching
from tests.chaos.world import World

NUM_KNOWN = 48
STORM = "storm"
MOST_CHOICES = 3


@dataclass(frozen=True, slots=True)
class Weather:
    """How long a storm lasts, how many clients there are, and how long it is calm between two
    troubles, on average."""

    seconds: float
    num_clients: int
    calm_s: float
    seed: int


@dataclass(slots=True)
class Aftermath:
    """The end of a storm: visits by how they ended, troubles by name."""

    visits: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    outages_s: list[float] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        counts = [f"{number} {name}" for name, number in (self.visits + self.troubles).items()]
        return Outcome(
            STORM,
            num_answers=self.visits.total(),
            num_disturbances=self.troubles.total(),
            outages_s=self.outages_s,
            breaches=self.breaches,
            notes=", ".join(counts),
        )


def storm(
    subject: Subject, world: World | None, weather: Weather, look: Callable[[Visitors], None]
) -> Aftermath:
    """Let it rage, with `look` called every second; afterwards the server must be at rest and its
    accounts right."""
    known = asks(NUM_KNOWN, random.Random(weather.seed), max_tokens=120)
    calm = put(subject.url, known)
    aftermath = Aftermath(breaches=not_right(calm))
    if aftermath.breaches:
        return aftermath
    visitors = Visitors(subject, list(zip(known, calm.answers, strict=True)), weather.seed)
    trouble = Trouble(subject, world, visitors, random.Random(f"{weather.seed} troubles"))
    before, num_calls = subject.metrics(), subject.num_calls
    batch = begin(subject, visitors.known) if world is not None else None
    with watching(subject) as watch:
        asyncio.run(_rage(trouble, weather, aftermath, look))
        subject.wait_engine()
        wrong_lines = [] if batch is None else wrongs(subject, batch)
    aftermath.visits = visitors.counts
    aftermath.outages_s = outages(trouble.hits_s, visitors.pulse)
    num_calls = subject.num_calls - num_calls
    aftermath.breaches += joined(
        visitors.breaches,
        wrong_lines,
        watch.breaches,
        at_rest(subject),
        unbalanced(before, subject.metrics(), _tally(visitors, batch, num_calls)),
    )
    return aftermath


def _tally(visitors: Visitors, batch: Batch | None, num_calls: int) -> Tally:
    """The accounts of clients and batch. A line may end more than once: it is put back where live
    requests come."""
    num_lines = 0 if batch is None else sum(ask.num_choices for ask, _ in batch.lines)
    put_back = visitors.subject.metrics().sum("quire:batch_lines_total", end="put_back")
    return Tally(
        visitors.num_sent + num_calls,
        visitors.num_unsure,
        visitors.least_ends + num_lines,
        visitors.most_ends + num_lines + int(put_back) * MOST_CHOICES,
    )


async def _rage(
    trouble: Trouble, weather: Weather, aftermath: Aftermath, look: Callable[[Visitors], None]
) -> None:
    visitors = trouble.visitors
    clients = [asyncio.ensure_future(visitors.come(each)) for each in range(weather.num_clients)]
    looking = asyncio.ensure_future(_look(visitors, look))
    end_s = time.monotonic() + weather.seconds
    while time.monotonic() < end_s:
        await asyncio.sleep(trouble.draw.expovariate(1 / weather.calm_s))
        (make,) = trouble.draw.choices(list(TROUBLES), list(TROUBLES.values()))
        aftermath.troubles[make.__name__] += 1
        await make(trouble)
    visitors.is_over = True
    await asyncio.gather(*clients)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking


async def _look(visitors: Visitors, look: Callable[[Visitors], None]) -> None:
    while True:
        await asyncio.to_thread(look, visitors)
        await asyncio.sleep(1)
