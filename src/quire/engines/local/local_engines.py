"""Several engines of one model on this machine, as one engine for its server.

Each is supervised as a single one is; a request is handed to one of them, whose stream its reader
gets. Where none follows an engine that has ended, its requests go on in the others.

    submit ──► Placements chooses ──► EngineSupervisor 0 ──► its stream
                                      EngineSupervisor 1
                                              │ none follows its engine: live requests come back
               choose again   ◄───────────────┘
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts
from quire.engine.orders import (
    Answer,
    ChargeTenants,
    Order,
    Question,
    ResetPrefixCache,
    Unpin,
)
from quire.engines.local.charges import Charges
from quire.engines.local.configs import engine_configs
from quire.engines.local.hearing import EngineListener, EnginesState
from quire.engines.local.placements import Placements
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.limits import as_before
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.request_table import GiveBack, fail_each
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.scheduler.policy import PolicyName
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Refusal, Stats

logger = logging.getLogger(__name__)

TICK_S = 0.05
"""An engine at work is told so often what others have served tenants."""
POLL_S = 0.05
FIRST_RETRY_S, LAST_RETRY_S = 30.0, 600.0
"""An engine that none follows is started again after so long, twice as long after each further
time."""
MAX_MOVES = 5
"""A request that was given back so often is not handed to another engine."""
OF_WORK = (EnginePhase.READY, EnginePhase.RESTARTING)
"""Phases in which an engine takes requests."""

OpenSupervisor: TypeAlias = Callable[[EngineConfig, EngineSubscriber, GiveBack], EngineSupervisor]


class LocalEngines:
    """The engines of one model, each opened by `open_supervisor`. It is READY once all are, and
    DOWN once none is left. `facts` are those of the first; the others are alike, but for the number
    of blocks where they divide the memory of a CPU.

    A request is told the engine that has it in its timeline. What pins its prompt pins it in all
    engines. The live view shows the blocks of one.
    """

    def __init__(
        self, config: EngineConfig, subscriber: EngineSubscriber, open_supervisor: OpenSupervisor
    ) -> None:
        self.facts: EngineFacts | None = None
        self.down_reason: str | None = None
        self._configs = engine_configs(config)
        self._open_supervisor = open_supervisor
        self._subscriber = subscriber
        num_engines, policy = len(self._configs), config.scheduling.scheduling_policy
        self._heard = EnginesState(
            Placements(num_engines, policy, block_size=config.memory.block_size),
            Charges(num_engines) if policy is PolicyName.FAIR else None,
        )
        self._hearings = [
            EngineListener(index, self._heard, subscriber) for index in range(num_engines)
        ]
        self._supervisors = [self._opened(index, each) for index, each in enumerate(self._configs)]
        self._of_one: Order | None = None
        self._has_begun = False
        self._is_closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def phase(self) -> EnginePhase:
        """The phase of those that are furthest, once all were ready; before that LOADING."""
        if self.down_reason is not None:
            return EnginePhase.DOWN
        if self.facts is None:
            return EnginePhase.LOADING if self._has_begun else EnginePhase.STARTING
        phases = [each.phase for each in self._supervisors]
        return EnginePhase.READY if EnginePhase.READY in phases else EnginePhase.RESTARTING

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the load of the first engine that is not ready."""
        left = (each for each in self._supervisors if each.phase is not EnginePhase.READY)
        return next(left, self._supervisors[0]).progress

    @property
    def lacks_memory(self) -> bool:
        """Whether an engine could not be loaded for want of memory."""
        return any(each.lacks_memory for each in self._supervisors)

    @property
    def processes(self) -> Sequence[EngineSupervisor]:
        """The supervisors of all engines, by their numbers."""
        return self._supervisors

    @property
    def standby_id(self) -> int | None:
        """The id of the process that forks the next engine of any model, or None."""
        return self._supervisors[0].standby_id

    @property
    def stats_by_replica(self) -> Mapping[str, Stats]:
        """The accounts of each engine, by its number."""
        return self._heard.accounts.by_engine

    @property
    def num_unfinished(self) -> int:
        """The number of requests that were submitted and have not ended."""
        return sum(each.num_unfinished for each in self._supervisors)

    def last_progress_age_s(self) -> float:
        """Return the seconds since any engine last completed a step, or 0 while one has no work."""
        ready = [each for each in self._supervisors if each.phase is EnginePhase.READY]
        return min((each.last_progress_age_s() for each in ready), default=0.0)

    async def start(self) -> None:
        """Start all engines; `phase` and `progress` tell how far they are."""
        self._has_begun = True
        await asyncio.gather(*(each.start() for each in self._supervisors))
        self._do(self._become_ready())

    async def _become_ready(self) -> None:
        """Wait until all engines are ready, or one cannot be loaded."""
        while not all(each.phase is EnginePhase.READY for each in self._supervisors):
            failed = next((e for e in self._supervisors if e.phase is EnginePhase.DOWN), None)
            if failed is not None:
                self.down_reason = failed.down_reason or "an engine could not be loaded"
                return
            await asyncio.sleep(POLL_S)
        facts = [each.facts for each in self._supervisors if each.facts is not None]
        self._heard.placements.limit_blocks(max(each.num_blocks for each in facts))
        for index, each in enumerate(facts):
            self._heard.accounts.begin(str(index), each.num_blocks - 1)
        self.facts = facts[0]
        self._do(self._tick())

    def submit(self, request: NewRequest) -> TokenStream:
        """Hand a request to one of the engines; its stream tells whether a scheduler has `accepted`
        it.

        Raises EngineDown; raises RequestRefused if the id is in use or too much is unanswered
        already.
        """
        if request.id in self._heard.placements:
            message = "this request id is in use"
            raise RequestRefused(Refusal(request.id, Reason.DUPLICATE_ID, message))
        at_work = self._at_work()
        stream = self._hand_over(request, at_work)
        if request.pins_prompt:
            self._pin_in_others(request, at_work)
        return stream

    def _hand_over(self, request: NewRequest, among: Collection[int]) -> TokenStream:
        """Hand a request to one of the engines of these numbers. Raises RequestRefused or
        EngineDown."""
        heard = self._heard
        index = heard.placements.place(request, among, time.monotonic())
        if heard.charges is not None:
            heard.charges.note(request)
            self._charge(index, heard.charges)
        try:
            stream = self._supervisors[index].submit(request)
        except (RequestRefused, EngineDown):
            heard.placements.end(request.id)
            raise
        stream.on_end = partial(heard.placements.end, request.id)
        heard.routed.append((request.id, heard.placements.route_of(request.id)))
        return stream

    def _pin_in_others(self, request: NewRequest, at_work: Collection[int]) -> None:
        """Pin a prefix in the engines that have not the request itself; nobody waits for them."""
        own = self._heard.placements.index_of(request.id)
        for index in at_work:
            if index != own:
                with suppress(RequestRefused, EngineDown):
                    self._hand_over(replace(request, id=_pin_id(request.id, index)), (index,))

    def _at_work(self) -> list[int]:
        """Return the numbers of the engines that a request may go to: those that are ready, or
        where none is those that restart. Raises EngineDown."""
        if self.facts is None or self.down_reason is not None:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        for phase in OF_WORK:
            found = [i for i, each in enumerate(self._supervisors) if each.phase is phase]
            if found:
                return found
        raise EngineDown("no engine is left")

    def abort(self, request_id: str) -> None:
        """End a request unless it has ended."""
        own = self._heard.placements.index_of(request_id)
        if own is not None:
            self._supervisors[own].abort(request_id)
        for index, each in enumerate(self._supervisors):
            each.abort(_pin_id(request_id, index))

    def order(self, order: Order) -> None:
        """Hand an order to all engines that take requests, or to one, as the order wants it; what
        is of a request also under the ids of what pins its prompt. Raises EngineDown for one that
        wants an engine while none is there."""
        if order.is_for_one:
            self._order_one(order)
            return
        if order.wants_engine:
            self._at_work()
        for index, each in enumerate(self._supervisors):
            if each.phase in OF_WORK:
                each.order(order)
                if isinstance(order, Unpin):
                    each.order(Unpin(_pin_id(order.request_id, index)))
                elif isinstance(order, ResetPrefixCache):
                    self._heard.placements.forget_prefixes(index)

    def _order_one(self, order: Order) -> None:
        """Hand an order to the engine that is watched: the first that has as many blocks as `facts`
        say. Another gets it where that one is given up."""
        heard, supervisors = self._heard, self._supervisors
        self._of_one = order
        if heard.watched is None or supervisors[heard.watched].phase is EnginePhase.DOWN:
            heard.watched = next(
                (index for index, each in enumerate(supervisors) if self._is_alike(each)), None
            )
        if heard.watched is not None:
            supervisors[heard.watched].order(order)

    def _is_alike(self, supervisor: EngineSupervisor) -> bool:
        facts, own = supervisor.facts, self.facts
        if supervisor.phase is EnginePhase.DOWN or facts is None or own is None:
            return False
        return (facts.num_blocks, facts.num_host_blocks) == (own.num_blocks, own.num_host_blocks)

    async def ask(self, question: Question) -> Answer:
        """Return the best of the engines' answers. Raises EngineDown if none answers,
        RequestRefused if one is asked too much."""
        ready = [each for each in self._supervisors if each.phase is EnginePhase.READY]
        asked = [each.ask(question) for each in ready]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [each for each in answers if not isinstance(each, BaseException)]
        for error in answers:
            if isinstance(error, BaseException) and not isinstance(error, EngineDown):
                raise error
        if not found:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        return question.best(found)

    async def close(self) -> None:
        """End all engines."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._supervisors))
        self.down_reason = self.down_reason or "the engine was closed"

    def _opened(self, index: int, config: EngineConfig) -> EngineSupervisor:
        give_back = partial(self._take_back, index)
        return self._open_supervisor(config, self._hearings[index], give_back)

    def _take_back(self, index: int, requests: Sequence[SubmittedRequest], reason: str) -> None:
        """Take the requests of an engine that none follows, and let the others go on with them."""
        if self._is_closing or self.facts is None:
            fail_each(requests, reason)
            return
        logger.error("engine %d is down: %d requests go on: %s", index, len(requests), reason)
        self._hearings[index].on_engine_lost(EndCause.REPLICA_LOST)
        if not any(each.phase in OF_WORK for each in self._supervisors):
            self.down_reason = reason
            fail_each(requests, reason)
            return
        for live in requests:
            self._move(live, index, reason)
        self._subscriber.on_engine_resumed(len(requests), 0.0)
        if self._heard.watched == index and self._of_one is not None:
            self._order_one(self._of_one)
        self._do(self._revive(index))

    def _move(self, live: SubmittedRequest, index: int, reason: str) -> None:
        """Let another engine go on with a request than that of this number."""
        if live.request.pins_prompt and live.id == _pin_id(live.id.rpartition("@")[0], index):
            live.stream.fail(reason)  # the others pin it themselves
            return
        live.num_moves += 1
        if live.num_moves > MAX_MOVES:
            live.stream.fail(f"{live.num_moves} engines that had it are down: {reason}")
            return
        placements = self._heard.placements
        other = placements.place(live.request, self._at_work(), time.monotonic())
        self._heard.routed.append((live.id, placements.route_of(live.id)))
        self._supervisors[other].adopt(live)
        if live.is_aborted:
            self._supervisors[other].abort(live.id)

    async def _revive(self, index: int) -> None:
        """Start an engine again that none follows, until it is ready."""
        delay_s = FIRST_RETRY_S
        assert self.facts is not None
        config = as_before(self._configs[index], self.facts)
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
            await self._supervisors[index].close()
            supervisor = self._supervisors[index] = self._opened(index, config)
            try:
                await supervisor.start()
            except OSError as error:
                logger.error("engine %d cannot be started: %s", index, error)
                continue
            while supervisor.phase not in (EnginePhase.READY, EnginePhase.DOWN):
                await asyncio.sleep(POLL_S)
            if supervisor.phase is EnginePhase.READY:
                logger.warning("engine %d is there again", index)
                return

    async def _tick(self) -> None:
        """Tell engines at work what others have served, for ever."""
        charges = self._heard.charges
        while charges is not None:
            await asyncio.sleep(TICK_S)
            for index, each in enumerate(self._supervisors):
                if each.num_unfinished:
                    self._charge(index, charges)

    def _charge(self, index: int, charges: Charges) -> None:
        due = charges.due(index)
        if due:
            self._supervisors[index].order(ChargeTenants(due))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _pin_id(request_id: str, index: int) -> str:
    """Return the id of what pins the prompt of a request in an engine that has not the request."""
    return f"{request_id}@{index}"
