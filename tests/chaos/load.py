"""Puts requests to a server all at once, with something that happens to it meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.chaos.answers import Answer, answer_of, differences
from tests.chaos.mix import Ask
from tests.chaos.ties import Judge
from tests.chaos.wire import Pulse, Reply, exchange

WITHIN_S = 300.0
Disturbance = Callable[[Pulse], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Load:
    """The answers to a load, in its order, and when tokens came."""

    replies: list[Reply]
    pulse: Pulse

    @property
    def answers(self) -> list[Answer]:
        return [answer_of(reply) for reply in self.replies]

    @property
    def num_comments(self) -> int:
        """The comment lines that streams got, by which a pause is told."""
        return sum(reply.num_comments for reply in self.replies if reply.ask.is_stream)


async def _nothing(pulse: Pulse) -> None:
    return


def put(url: str, asks: Sequence[Ask], disturb: Disturbance = _nothing) -> Load:
    """Ask all at once, and disturb meanwhile. Raises what disturbing raises, and TimeoutError where
    an answer does not come, or disturbing does not end then."""
    return asyncio.run(_put(url, asks, disturb))


async def _put(url: str, asks: Sequence[Ask], disturb: Disturbance) -> Load:
    pulse = Pulse()
    disturbing = asyncio.ensure_future(disturb(pulse))
    async with asyncio.timeout(WITHIN_S):
        replies = await asyncio.gather(*(exchange(url, ask, pulse) for ask in asks))
        await disturbing
    return Load(replies, pulse)


def faults(calm: Load, seen: Load, judge: Judge) -> list[str]:
    """Say which answers are not those of the undisturbed run, each in a line; one that differs
    from a rounding tie on is right."""
    found = []
    for was, now, reply in zip(calm.answers, seen.answers, seen.replies, strict=True):
        differ = differences(was, now)
        if differ and not judge.are_ties(reply.ask, was, now):
            found.append(f"{reply.ask}: {'; '.join(differ)}")
    return found


def not_right(load: Load) -> list[str]:
    """Say which answers of an undisturbed run are not whole: it would prove nothing."""
    return [
        f"{reply.ask}: {answer.status} {answer.error} {answer.fault}"
        for reply, answer in zip(load.replies, load.answers, strict=True)
        if not answer.is_right
    ]
