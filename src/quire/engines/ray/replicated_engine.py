"""The engine of a model as a server sees it, where replicas compute.

What is kept of a request is what a supervisor keeps for the engine that follows. What the engines
count is told as if they were one, and of each by `ReplicaAccounts`.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from itertools import count

import msgspec

from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts, EngineOutput, EngineQuery
from quire.engine.orders import Answer, Order, Question
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.request_table import RequestTable
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.token_stream import EngineDown, TokenStream
from quire.engines.ray.accounts import ReplicaAccounts
from quire.engines.ray.calls import RequestCalls
from quire.engines.ray.clocks import clock_offset_s, shift_s, shifted_delta, shifted_output
from quire.engines.ray.messages import (
    Call,
    ReplicaIdentity,
    ReplicaUpdate,
    decode_answer,
    encode,
)
from quire.engines.ray.replicas import ReplicaLost, Replicas
from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event, NewRequest
from quire.scheduler.step import Delta, Stats

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""Time limits of requests that no replica has are looked after so often."""
COLLECT_S = 1.0
"""Replicas that have no request of the server's are asked so often what they have to tell."""
COLLECTIONS_PER_GREETING = 10
"""Replicas that nothing is known of are looked for once in so many."""


class ReplicatedEngine:
    """The replicas of one model. `phase`, `facts` (once there are replicas) and `down_reason` may
    be read at any time.

    A request is told the replica that has it in its timeline. The live view shows the blocks of one
    replica. Nothing of flight recorders or processes is to be had from here: each replica has its
    own, where it runs.
    """

    processes = ()
    standby_id: int | None = None
    lacks_memory = False

    def __init__(
        self, replicas: Replicas, config: EngineConfig, subscriber: EngineSubscriber
    ) -> None:
        self.phase = EnginePhase.STARTING
        self.facts: EngineFacts | None = None
        self.down_reason: str | None = None
        self._replicas = replicas
        self._config = config
        self._subscriber = subscriber
        self._table = RequestTable(subscriber.on_ended_here)
        self._calls = RequestCalls(
            replicas, self._table, self._on_joined, self._on_told, self._on_lost
        )
        self._accounts = ReplicaAccounts()
        self._shifts_s: dict[str, float] = {}
        self._routed: list[tuple[str, Event]] = []
        self._watched: str | None = None
        self._of_one: Order | None = None
        self._last_progress_s = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the start, and how much of it is done."""
        return self._replicas.progress

    @property
    def num_unfinished(self) -> int:
        """The number of requests that were submitted and have not ended."""
        return len(self._table.live)

    @property
    def stats_by_replica(self) -> Mapping[str, Stats]:
        """The accounts of each replica's engine."""
        return self._accounts.by_replica

    def last_progress_age_s(self) -> float:
        """Return the seconds since any replica last told something, or 0 while there is no work."""
        if not self._table.live or self.phase is not EnginePhase.READY:
            return 0.0
        return time.monotonic() - self._last_progress_s

    async def start(self) -> None:
        """Start the replicas; `phase` and `progress` tell how far they are."""
        self.phase = EnginePhase.LOADING
        self._do(self._start())

    async def _start(self) -> None:
        try:
            self.facts = await self._replicas.start()
        except EngineDown as error:
            self.down_reason = str(error)
            self.phase = EnginePhase.DOWN
            return
        self.phase = EnginePhase.READY
        self._do(self._tick())
        self._do(self._listen())

    def submit(self, request: NewRequest) -> TokenStream:
        """Hand a request to a replica; its stream tells whether a scheduler has `accepted` it.

        Raises EngineDown; raises RequestRefused if the id is in use or too much is unanswered
        already.
        """
        if self.phase is not EnginePhase.READY or self.facts is None:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        of_each = self._config.scheduling.max_num_queued_reqs + self.facts.max_num_seqs
        most = of_each * max(len(self._shifts_s), 1)
        self._table.refuse_beyond(request.id, most, None)
        now = time.monotonic()
        if not self._table.live:
            self._last_progress_s = now
        live = self._table.add(request, now)
        self._calls.submit(live)
        return live.stream

    def abort(self, request_id: str) -> None:
        """End a request unless it has ended."""
        live = self._table.live.get(request_id)
        if live is not None:
            self._calls.abort(live)

    def order(self, order: Order) -> None:
        """Hand an order to all replicas, or to one, as the order wants it. Raises EngineDown for
        one that wants an engine while none is there."""
        if order.is_for_one:
            self._order_one(order)
            return
        if order.wants_engine and self.phase is not EnginePhase.READY:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        self._do(self._order_all(order))

    def _order_one(self, order: Order) -> None:
        """Hand an order to the replica that is watched; another gets it where that one is lost."""
        self._of_one = order
        if self._watched is None:
            self._watched = next(iter(self._shifts_s), None)
        if self._watched is not None:
            self._do(self._order(order, self._watched))

    async def ask(self, question: Question) -> Answer:
        """Return the best of the replicas' answers. Raises EngineDown."""
        try:
            answers = await self._replicas.order_all(Call(encode(EngineQuery("", question))))
        except ReplicaLost as error:
            raise EngineDown(str(error)) from None
        if not answers:
            raise EngineDown("no replica is there")
        return question.best(map(decode_answer, answers))

    async def close(self) -> None:
        """End all calls, and the replicas if they are this server's own."""
        await self._calls.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.phase, self.down_reason = EnginePhase.DOWN, self.down_reason or "the engine was closed"
        self._table.give_back_all(self.down_reason)
        await self._replicas.close()

    async def _order_all(self, order: Order) -> None:
        try:
            await self._replicas.order_all(Call(encode(order)))
        except ReplicaLost as error:
            logger.warning("a replica has not got %s: %s", type(order).__name__, error)

    async def _order(self, order: Order, replica: str) -> None:
        with suppress(ReplicaLost):
            await self._replicas.order(Call(encode(order), replica=replica))

    def _on_joined(self, live: SubmittedRequest, joined: ReplicaIdentity) -> None:
        """Note in a request's timeline which replica has it."""
        self._know(joined)
        event = Event(time.monotonic(), Reason.ROUTED, 0, joined.replica)
        live.timeline.append(event)
        self._routed.append((live.id, event))

    def _on_told(self, replica: str, told: ReplicaUpdate) -> None:
        """Take what a replica tells, in its order of things: ends of engines come first, since what
        is told after them is of those that follow."""
        self._last_progress_s = time.monotonic()
        for lost in told.lost:
            self._accounts.lose(replica)
            self._subscriber.on_engine_lost(lost.cause)
            self._accounts.begin_anew()
        for resumed in told.resumed:
            self._subscriber.on_engine_resumed(resumed.num_requests, resumed.out_of_service_s)
        for _ in range(told.num_quarantined):
            self._subscriber.on_quarantined()
        for is_written, num in ((True, told.num_flights), (False, told.num_failed_flights)):
            for _ in range(num):
                self._subscriber.on_flight_kept(is_written)
        for output in told.outputs:
            self._take_output(replica, output)
        for delta in told.ended:
            routed = self._with_route(shifted_delta(delta, self._shifts_s.get(replica, 0.0)))
            self._subscriber.on_ended_here(routed)
            self._table.deliver(routed)
        for refusal in told.refused:
            self._table.refuse(refusal)

    def _take_output(self, replica: str, output: EngineOutput) -> None:
        self._accounts.take(replica, output.stats)
        routed, self._routed = self._routed, []
        output = shifted_output(output, self._shifts_s.get(replica, 0.0))
        output = msgspec.structs.replace(
            output,
            stats=self._accounts.total,
            deltas=tuple(
                each if each.finish is None else self._with_route(each) for each in output.deltas
            ),
            events=(*routed, *output.events),
            live=output.live if replica == self._watched else None,
        )
        self._subscriber.on_output(output)
        self._table.take(msgspec.structs.replace(output, events=output.events[len(routed) :]))

    def _with_route(self, delta: Delta) -> Delta:
        """Return the last delta of a request with the replicas in its timeline."""
        live, finish = self._table.live.get(delta.request_id), delta.finish
        if live is None or finish is None:
            return delta
        known = set(finish.timeline)
        missing = [e for e in live.timeline if e.reason is Reason.ROUTED and e not in known]
        timeline = sorted((*missing, *finish.timeline), key=lambda event: event.time_s)
        return delta._replace(finish=finish._replace(timeline=tuple(timeline)))

    def _on_lost(self, replica: str, num_resumed: int) -> None:
        """Note that a replica is lost, and that so many of its requests go on elsewhere."""
        self._forget(replica)
        self._subscriber.on_engine_lost(EndCause.REPLICA_LOST)
        self._accounts.begin_anew()
        self._subscriber.on_engine_resumed(num_resumed, 0.0)

    def _forget(self, replica: str) -> None:
        """Note that a replica is no more."""
        self._accounts.lose(replica)
        self._shifts_s.pop(replica, None)
        if self._watched == replica:
            self._watched = None
            if self._of_one is not None:
                self._order_one(self._of_one)

    async def _tick(self) -> None:
        """Look after time limits, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self._calls.end_late(time.monotonic())

    async def _listen(self) -> None:
        """Hear replicas that have no request of this server's, which calls carry nothing of, for
        ever: what pinned blocks cost, and what has become of the others."""
        for number in count():
            if number % COLLECTIONS_PER_GREETING == 0:
                for joined in await self._calls.greet():
                    self._know(joined)
            await asyncio.sleep(COLLECT_S)
            idle = [name for name in self._shifts_s if not self._calls.num_at(name)]
            await asyncio.gather(*map(self._collect, idle))

    def _know(self, joined: ReplicaIdentity) -> None:
        self._shifts_s[joined.replica] = shift_s(joined.clock_offset_s, clock_offset_s())

    async def _collect(self, replica: str) -> None:
        is_there = await self._calls.collect(replica)
        if not is_there and not self._calls.num_at(replica) and replica in self._shifts_s:
            self._forget(replica)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
