"""Prefill and decode apart: one pool of engines computes prompts, another continues them.

As a gateway does it: the request goes to an engine for prompts with one token to generate, whose
answer nobody sees; then itself to another engine, which has the blocks of the prompt that it lacks
over the first one's link. It declines them where computing takes less time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from quire.cache.chain import Chain
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Delta
from quire.workbench.simulation.virtual.pool import EnginePool
from quire.workbench.simulation.virtual.sending import Link, LinkSpeed, TransferTotals
from quire.workbench.simulation.virtual.to_clients import ClientForwarder
from quire.workbench.simulation.virtual.virtual_engine import RoutedRequest, StepTimes

ChainOf = Callable[[NewRequest], Chain]
"""Makes the chain of a prompt's blocks that may be found in a prefix cache."""
COMPUTED = (Reason.MAX_TOKENS, Reason.END_OF_SEQUENCE)
"""A prompt whose only token ends so was computed."""


class TimedArrival(NamedTuple):
    """A request that an engine gets at that time; `order` tells equal times apart."""

    at_s: float
    order: int
    handed: RoutedRequest
    place: int


class Handover:
    """Hears the engines of `prompts`, and hands what they have computed on to `others`."""

    def __init__(
        self, speed: LinkSpeed, chain_of: ChainOf, prompts: EnginePool, others: ClientForwarder
    ) -> None:
        self._speed = speed
        self._chain_of = chain_of
        self._prompts = prompts
        self._others = others
        self._links: dict[int, Link] = {}
        self._whole: dict[str, RoutedRequest] = {}
        self._arrivals: list[TimedArrival] = []
        self._order = count()
        self.sent = TransferTotals()

    @property
    def next_s(self) -> float:
        """When the next request arrives at an engine that continues it."""
        return self._arrivals[0].at_s if self._arrivals else inf

    def begin(self, handed: RoutedRequest, now: float) -> None:
        """Let the prompt of a request be computed."""
        self._whole[handed.new.id] = handed
        stopping = replace(handed.new.stopping, max_tokens=1)
        self._prompts.hand(handed._replace(new=replace(handed.new, stopping=stopping)), now)

    def arrive(self) -> None:
        """Hand over the request that arrives next."""
        at_s, _, handed, place = heappop(self._arrivals)
        self._others.pool.engines[place].hand(handed, at_s)

    def note_step(self, times: StepTimes) -> None:
        self._others.note_step(times)

    def deliver(self, deltas: Sequence[Delta], ended_s: float) -> None:
        """Send the blocks of prompts that are computed; the tokens behind them nobody sees."""
        for delta in deltas:
            if delta.finish is None:
                continue
            place = self._prompts.end(delta.request_id)
            handed = self._whole.pop(delta.request_id)
            if delta.finish.reason in COMPUTED:
                self._send(handed, place, ended_s)
            else:
                self._others.clients.deliver((delta._replace(token_ids=()),), ended_s)

    def refuse(self, request_id: str, reason: Reason, now: float) -> None:
        """Answer a request that an engine for prompts does not take."""
        self._prompts.end(request_id)
        del self._whole[request_id]
        self._others.clients.refuse(request_id, reason, now)

    def _send(self, handed: RoutedRequest, place: int, now: float) -> None:
        """Send what the engine that is to continue a request lacks of its prompt's blocks."""
        pool = self._others.pool
        to = pool.place(handed.new)
        engine, chain = pool.engines[to], self._chain_of(handed.new)
        num_tokens, at_s = engine.lacking(chain), now
        if num_tokens and engine.prefers_load(num_tokens, self._speed.load_s(num_tokens)):
            link = self._links.setdefault(place, Link(self._speed))
            at_s = link.send(num_tokens, now, self.sent)
            handed = handed._replace(came_in=chain)
        elif num_tokens:
            self.sent.num_declined += 1
        heappush(self._arrivals, TimedArrival(at_s, next(self._order), handed, to))
