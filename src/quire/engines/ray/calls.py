"""The calls of a front end's requests: one runs for each request, wherever its replica is, and
another where that is lost.

    submit ──► a call ──► Joined(replica), items ... ──► its end
                  ▲             │ the replica is lost
                  └─────────────┘ behind the tokens that were handed out
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from uuid import uuid4

from quire.engine.messages import Abort
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.request_table import RequestTable
from quire.engines.ray.clocks import clock_offset_s
from quire.engines.ray.inbox import Inbox
from quire.engines.ray.messages import (
    Call,
    Collect,
    Greet,
    ReplicaIdentity,
    ReplicaUpdate,
    decode_collected,
    decode_item,
    decode_joined,
    encode,
    routing_text,
)
from quire.engines.ray.replicas import ReplicaLost, Replicas
from quire.scheduler.reasons import Reason

logger = logging.getLogger(__name__)

MAX_LOSSES = 5
"""A request whose call was lost so often is not called again."""
RETRY_S = 0.1
"""A request whose call was lost is called again after so long, longer after each further loss."""
LATE_S = 10.0
"""The end of a request may be told so long after its own call has ended, on another one."""


@dataclass(slots=True, eq=False)
class ReplicaPlacement:
    """The place of one request: its `replica`, None while none is known to have it, and the front
    end's name in the call. `running` is the task of its call; `is_placed` is set once a replica has
    it, or it has ended."""

    live: SubmittedRequest
    replica: str | None = None
    front_end: str = ""
    num_losses: int = 0
    running: "asyncio.Task[None] | None" = None
    is_placed: asyncio.Event = field(default_factory=asyncio.Event)


class RequestCalls:
    """Runs the calls of the requests of `table`. `on_joined` is told of each replica that has taken
    a request, `on_told` of all that replicas tell, in the order of each; `on_lost` of each replica
    that is lost, and how many of its requests go on elsewhere."""

    def __init__(
        self,
        replicas: Replicas,
        table: RequestTable,
        on_joined: Callable[[SubmittedRequest, ReplicaIdentity], None],
        on_told: Callable[[str, ReplicaUpdate], None],
        on_lost: Callable[[str, int], None],
    ) -> None:
        self._replicas = replicas
        self._table = table
        self._on_joined = on_joined
        self._on_told = on_told
        self._on_lost = on_lost
        self._name = uuid4().hex
        self._epoch = 0
        self._inboxes: dict[tuple[str, str], Inbox] = {}
        self._lost: set[tuple[str, str]] = set()
        self._placements: dict[str, ReplicaPlacement] = {}
        self._orders: set[asyncio.Task[None]] = set()

    def submit(self, live: SubmittedRequest) -> None:
        """Begin to call for a request, which is in the table and waits."""
        placement = self._placements[live.id] = ReplicaPlacement(live)
        self._run(placement)

    def abort(self, live: SubmittedRequest) -> None:
        """End a request: at once while no replica is known to have it, else as soon as that has
        read it."""
        placement = self._placements[live.id]
        if placement.replica is None:
            self._end(placement, Reason.ABORTED)
            return
        live.is_aborted = True
        body = encode(Abort(live.id))
        self._order(Call(body, front_end=placement.front_end, replica=placement.replica))

    def end_late(self, now: float) -> None:
        """End the requests whose time limits have passed while no replica has them."""
        for placement in tuple(self._placements.values()):
            if placement.replica is None and placement.live.is_late(now):
                self._end(placement, Reason.DEADLINE_EXCEEDED)

    def num_at(self, replica: str) -> int:
        """Return the number of requests that a replica has."""
        return sum(each.replica == replica for each in self._placements.values())

    async def greet(self) -> list[ReplicaIdentity]:
        """Return what replicas there are, which keep what they have to tell from then on."""
        try:
            call = Call(encode(Greet()), front_end=self._front_end)
            return [decode_joined(answer) for answer in await self._replicas.order_all(call)]
        except ReplicaLost as error:
            logger.debug("a greeting was lost: %s", error)
            return []

    async def collect(self, replica: str) -> bool:
        """Take what a replica has to tell that no call carries; return whether it is there."""
        front_end = self._front_end
        call = Call(encode(Collect()), front_end=front_end, replica=replica)
        try:
            answer = decode_collected(await self._replicas.order(call))
        except ReplicaLost as error:  # what it has told may be lost too
            self._lose(replica, front_end, str(error))
            return False
        if answer.told is not None:
            self._take_told((answer.replica, front_end), answer.told)
        return answer.replica == replica

    async def close(self) -> None:
        """End all calls."""
        running = [each.running for each in self._placements.values() if each.running is not None]
        for task in (*running, *self._orders):
            task.cancel()
        await asyncio.gather(*running, *self._orders, return_exceptions=True)

    @property
    def _front_end(self) -> str:
        return f"{self._name}-{self._epoch}"

    def _end(self, placement: ReplicaPlacement, reason: Reason) -> None:
        assert placement.running is not None
        placement.running.cancel()
        self._forget(placement)
        self._table.end(placement.live, reason)

    def _forget(self, placement: ReplicaPlacement) -> None:
        placement.is_placed.set()
        if self._placements.get(placement.live.id) is placement:
            del self._placements[placement.live.id]

    def _run(self, placement: ReplicaPlacement) -> None:
        placement.running = asyncio.create_task(self._call(placement))

    def _is_live(self, live: SubmittedRequest) -> bool:
        return self._table.live.get(live.id) is live

    async def _call(self, placement: ReplicaPlacement) -> None:
        """Call for a request until it has ended."""
        live = placement.live
        if placement.num_losses:
            await asyncio.sleep(RETRY_S * placement.num_losses)
        placement.front_end = self._front_end
        try:
            await self._carry(placement, await self._of_parent(live))
            until_s = time.monotonic() + LATE_S
            while self._is_live(live) and time.monotonic() < until_s:
                await asyncio.sleep(RETRY_S)
            why = "its end was not told"
        except ReplicaLost as error:
            why = str(error)
        except Exception as error:  # no stream may hang for a defect of this
            logger.exception("a call failed in a way that nobody thought of")
            why = f"{type(error).__name__}: {error}"
        if not self._is_live(live):
            self._forget(placement)
        elif placement.replica is None:
            self._go_on(placement, why)
        else:
            self._lose(placement.replica, placement.front_end, why)

    async def _of_parent(self, live: SubmittedRequest) -> str | None:
        """Return the replica of the request that this one is forked from, once it has one."""
        parent = self._placements.get(live.request.fork_of or "")
        if parent is None or live.stream.is_accepted:
            return None
        await parent.is_placed.wait()
        return parent.replica

    async def _carry(self, placement: ReplicaPlacement, replica: str | None) -> None:
        """Make one call, and hand on what comes on it. Raises ReplicaLost."""
        live, front_end = placement.live, placement.front_end
        body = encode(self._table.hand_over(live, time.monotonic()))
        text = routing_text(live.request)
        call = Call(body, text, front_end, replica, clock_offset_s())
        async with aclosing(self._replicas.generate(call)) as items:
            async for item in items:
                self._take(placement, decode_item(item))

    def _take(self, placement: ReplicaPlacement, item: ReplicaIdentity | ReplicaUpdate) -> None:
        """Take an item of a call. Raises ReplicaLost if it is of a replica that counts as lost."""
        if isinstance(item, ReplicaIdentity):
            if (item.replica, placement.front_end) in self._lost:  # it lives: under another name
                self._epoch += 1
                raise ReplicaLost(f"replica {item.replica} was lost before")
            placement.replica = item.replica
            placement.is_placed.set()
            self._on_joined(placement.live, item)
            return
        assert placement.replica is not None
        self._take_told((placement.replica, placement.front_end), item)

    def _take_told(self, place: tuple[str, str], item: ReplicaUpdate) -> None:
        if place in self._lost:
            return
        inbox = self._inboxes.get(place)
        if inbox is None:
            inbox = self._inboxes[place] = Inbox()
        for told in inbox.take(item):
            self._on_told(place[0], told)
            if told.is_down:
                self._lose(*place, "its engine is down")
                return

    def _lose(self, replica: str, front_end: str, why: str) -> None:
        """Take a replica for lost: nothing more is heard of it under this name of the front end,
        and all requests that it has go on elsewhere."""
        place = replica, front_end
        if place in self._lost:
            return
        self._lost.add(place)
        self._inboxes.pop(place, None)
        theirs = [
            each
            for each in self._placements.values()
            if (each.replica, each.front_end) == place and self._is_live(each.live)
        ]
        logger.warning("replica %s is lost, %d requests go on: %s", replica, len(theirs), why)
        for placement in theirs:
            self._go_on(placement, why)
        self._on_lost(replica, len(theirs))

    def _go_on(self, placement: ReplicaPlacement, why: str) -> None:
        """Call again for a request whose call is lost, unless that was so too often."""
        live, running = placement.live, placement.running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
        placement.replica = None
        placement.num_losses += 1
        self._table.lose(live)
        if not self._is_live(live):
            self._forget(placement)
        elif placement.num_losses > MAX_LOSSES:
            self._forget(placement)
            self._table.fail(live, f"{placement.num_losses} calls of it were lost: {why}")
        else:
            self._run(placement)

    def _order(self, call: Call) -> None:
        """Send an order that nobody waits for."""
        task = asyncio.create_task(self._send(call))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _send(self, call: Call) -> None:
        try:
            await self._replicas.order(call)
        except ReplicaLost as error:
            logger.debug("an order was lost: %s", error)
