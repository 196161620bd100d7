"""Keeps an engine running: where one ends, another goes on with every request that has not ended.

Streams belong to the supervisor and outlive engines; their readers see a pause. An engine is
`EngineClient`; what is kept of a request is `SubmittedRequest`.

        start          Ready                          ends
    ──────────► LOADING ─────► READY ───────────────────────────► RESTARTING ──► DOWN
                                 ▲   all that has not ended,       │    too often, within minutes
                                 └── in its order ─────────────────┘
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.failure_kind import FailureKind
from quire.engine.messages import Abort, EngineFacts, EngineOutput
from quire.engine.orders import Answer, Order, Question
from quire.engines.process.client import EngineClient, EngineEnd, EnginePhase
from quire.engines.process.engine_starter import EngineStarter
from quire.engines.process.engine_watch import EngineWatch
from quire.engines.process.flight_ring import FlightRing
from quire.engines.process.judge import Judge
from quire.engines.process.limits import as_before
from quire.engines.process.live_request import SubmittedRequest
from quire.engines.process.quarantine import Quarantine
from quire.engines.process.questions import Questions
from quire.engines.process.request_table import CRASHES, GiveBack, RequestTable, fail_each
from quire.engines.process.restart_policy import RestartPolicy
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.token_stream import EngineDown, RequestRefused, TokenStream
from quire.engines.process.trials import Trials
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, ResumedOutput
from quire.scheduler.step import NO_REPLICAS, Refusal

logger = logging.getLogger(__name__)

SENT_AT_ONCE = 16
"""So many requests are handed to a new engine in one iteration of the event loop."""
TICK_S = 0.05
"""Time limits, trials and the engine's progress are looked after so often."""
SILENT_S = 1.0
"""An engine that has told nothing for so long is not relied on to end what runs out of time."""


class EngineSupervisor:
    """Runs engines with one configuration, one after another, on the running event loop.

    `phase`, `facts` (once an engine was ready) and `down_reason` may be read at any time. It is
    DOWN where the first engine could not be loaded, if for want of memory then it `lacks_memory`,
    or where engines have ended too often: then `give_back` gets the requests that have not ended.
    `starter` starts them.
    """

    def __init__(
        self,
        config: EngineConfig,
        subscriber: EngineSubscriber,
        supervision: SupervisionConfig,
        starter: EngineStarter | None = None,
        give_back: GiveBack = fail_each,
    ) -> None:
        self.phase = EnginePhase.STARTING
        self.facts: EngineFacts | None = None
        self.down_reason: str | None = None
        self.lacks_memory = False
        self.stats_by_replica = NO_REPLICAS
        self._config = config
        self._subscriber = subscriber
        self._starter = starter or EngineStarter(has_standby=False)
        self._policy = RestartPolicy(supervision.max_engine_restarts)
        self._client: EngineClient | None = None
        self._requests = RequestTable(subscriber.on_ended_here, give_back)
        self._trials = Trials()
        self._quarantine = Quarantine()
        self._judge = Judge(self._trials, self._quarantine, self._requests, subscriber)
        self._watch = EngineWatch(supervision.stuck_after_s)
        self._questions = Questions()
        self._has_stepped = False
        self._due: list[Order] = []
        self._last_progress_s = time.monotonic()
        self._lost_s = 0.0
        self._handed_over: tuple[str, ...] = ()
        self._supervising: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._dispatching: asyncio.Task[int] | None = None
        self._closing = asyncio.Event()

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the load of the engine that runs or is to, and how much of it is done."""
        return ("process", 0, 1) if self._client is None else self._client.progress

    @property
    def processes(self) -> "Sequence[EngineSupervisor]":
        """The supervisors of processes of this machine: this one."""
        return (self,)

    @property
    def process_id(self) -> int | None:
        """The id of the engine's process, or None while there is none."""
        return None if self._client is None else self._client.process_id

    @property
    def ring(self) -> FlightRing | None:
        """The memory of the engine's flight recorder, while there is an engine."""
        return None if self._client is None else self._client.ring

    @property
    def standby_id(self) -> int | None:
        """The id of the process that forks the next engine of any model, or None."""
        return self._starter.standby_id

    @property
    def num_unfinished(self) -> int:
        """The number of requests that were submitted and have not ended."""
        return len(self._requests.live)

    def last_progress_age_s(self) -> float:
        """Return the seconds since the engine last completed a step, or 0 while it has no work."""
        if not self._requests.live or self.phase is not EnginePhase.READY:
            return 0.0
        return time.monotonic() - self._last_progress_s

    async def start(self) -> None:
        """Start the process unless it runs already; `phase` and `progress` tell how far it is."""
        client = self._client = self._open()
        await client.start()
        self.phase = EnginePhase.LOADING
        self._supervising = asyncio.create_task(self._supervise(client))
        self._ticking = asyncio.create_task(self._tick())

    def submit(self, request: NewRequest, resumed: ResumedOutput | None = None) -> TokenStream:
        """Hand a request to the engine, or to the next one while there is none; its stream tells
        whether the scheduler has `accepted` it, as one that is `resumed` here was elsewhere.

        Raises EngineDown; raises RequestRefused if the id is in use or too much is unanswered
        already.
        """
        if self.phase not in (EnginePhase.READY, EnginePhase.RESTARTING):
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        if request in self._quarantine:
            raise RequestRefused(
                Refusal(request.id, Reason.QUARANTINED, f"{CRASHES} as it did before")
            )
        self._refuse_beyond_bounds(request.id)
        live = self._requests.new(request, time.monotonic(), resumed)
        self.adopt(live)
        return live.stream

    def adopt(self, live: SubmittedRequest) -> None:
        """Go on with a request that no engine has, as one that another supervisor gave back."""
        now, requests = time.monotonic(), self._requests
        if not requests.live:
            self._last_progress_s = now
        must_wait = bool(requests.waiting) or self._trials.group is not None
        requests.adopt(live)
        if self._client is not None and self.phase is EnginePhase.READY and not must_wait:
            self._client.send(requests.hand_over(live, now))

    def _refuse_beyond_bounds(self, request_id: str) -> None:
        """Raise RequestRefused if as much is unanswered as the engine could ever accept."""
        most = self._config.scheduling.max_num_queued_reqs + (
            self.facts.max_num_seqs if self.facts else 0
        )
        num_unread = None
        if self.phase is EnginePhase.READY and self._client is not None:
            num_unread = self._client.num_unread_bytes
        self._requests.refuse_beyond(request_id, most, num_unread)

    def abort(self, request_id: str) -> None:
        """End a request unless it has ended; its stream ends with a finish, a step after the engine
        has read this (behind megabytes of new prompts that may take some steps), or at once while
        no engine has it."""
        live = self._requests.live.get(request_id)
        if live is None:
            return
        if live.is_handed_over and self._client is not None:
            live.is_aborted = True
            if not live.is_withdrawn:
                self._client.send(Abort(request_id))
        else:
            self._requests.end(live, Reason.ABORTED)

    def order(self, order: Order) -> None:
        """Hand an order to the engine that runs, if one does, or as the order wants it. Raises
        EngineDown for one that wants an engine while none is ready."""
        if order.is_kept and self.phase is EnginePhase.RESTARTING:
            if order not in self._due:
                self._due.append(order)
        elif order.wants_engine:
            self._ready_client().send(order)
        elif self._client is not None:
            self._client.send(order)

    def _ready_client(self) -> EngineClient:
        """Return the engine. Raises EngineDown."""
        if self.phase is not EnginePhase.READY or self._client is None:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        return self._client

    async def ask(self, question: Question) -> Answer:
        """Return the answer of the engine when it has read this, between two steps.

        Raises EngineDown, also where the engine ends before it answers; raises RequestRefused if
        too many questions are unanswered already.
        """
        return await self._questions.ask(self._ready_client().send, question)

    async def close(self) -> None:
        """End the engine process, in whatever state: close the socket, and kill it if it takes too
        long."""
        self._closing.set()
        if self._client is not None:
            await self._client.close()
        tasks = (self._supervising, self._ticking, self._dispatching)
        await asyncio.gather(*(task for task in tasks if task is not None))

    def _open(self) -> EngineClient:
        config = self._config if self.facts is None else as_before(self._config, self.facts)
        return EngineClient(partial(self._starter.launch, config), self._take_output)

    def _take_output(self, output: EngineOutput) -> None:
        self._last_progress_s = time.monotonic()
        self._has_stepped |= output.step > 0
        output = self._requests.without_withdrawn(output)
        self._subscriber.on_output(output)
        self._questions.take(output.answers)
        self._requests.take(output)

    async def _supervise(self, client: EngineClient) -> None:
        """Follow one engine after another until the supervisor is closed or gives up."""
        try:
            following: EngineClient | None = client
            while following is not None:
                following = await self._follow(following)
            if self.phase is not EnginePhase.DOWN:
                self._give_up("the engine was closed")
        except Exception as error:  # no stream may hang for a defect of this
            logger.exception("the supervision of the engine failed")
            self._give_up(f"{type(error).__name__}: {error}")

    async def _follow(self, client: EngineClient) -> EngineClient | None:
        """Serve with an engine until it ends; return the one that follows it, if one does."""
        if await client.loaded() and client.facts is not None:
            self.facts = facts = client.facts
            await self._hand_over_all(client)
            await asyncio.to_thread(self._starter.prepare, facts.model_type)
        await client.disconnected()
        if self.facts is not None and not self._closing.is_set():
            self._pause()
        end = await client.ended()
        if self._closing.is_set() or self.facts is None:
            self.lacks_memory = (
                end.failed is not None and end.failed.kind is FailureKind.OUT_OF_MEMORY
            )
            self._give_up(end.message)
            if not self._closing.is_set() and end.failed is None:
                logger.error("%s (exit code %d)", self.down_reason, end.exit_code)
            return None
        if client.ring is not None:
            client.ring.keep(end.message, self._subscriber.on_flight_kept)
        return await self._next(end)

    async def _hand_over_all(self, client: EngineClient) -> None:
        """Hand everything that has not ended, or all that may run, to an engine that is ready."""
        due, self._due = self._due, []
        for order in due:
            client.send(order)
        num_resumed = await self._dispatch(client)
        if client.phase is EnginePhase.READY:
            self._go_on(num_resumed)

    async def _dispatch(self, client: EngineClient) -> int:
        """Hand over the requests that wait and may run, in their order; return how many of them an
        engine had accepted before."""
        num_sent = num_resumed = 0
        while (
            client.phase is EnginePhase.READY and (live := self._judge.next_waiting()) is not None
        ):
            client.send(self._requests.hand_over(live, time.monotonic()))
            num_resumed += live.stream.is_accepted
            num_sent += 1
            if num_sent % SENT_AT_ONCE == 0:
                await asyncio.sleep(0)
                await client.drain()
        return num_resumed

    def _go_on(self, num_resumed: int) -> None:
        """Note that the engine has all requests that may run."""
        self._has_stepped = False
        self._last_progress_s = now = time.monotonic()
        if self.phase is EnginePhase.RESTARTING:
            lost_s = now - self._lost_s
            logger.warning(
                "an engine is there again after %.2f s: %d requests go on", lost_s, num_resumed
            )
            self._subscriber.on_engine_resumed(num_resumed, lost_s)
        self.phase = EnginePhase.READY

    def _pause(self) -> None:
        """Note that no engine has any request: all wait for the next one."""
        if self.phase is not EnginePhase.RESTARTING:
            self._lost_s = time.monotonic()
        self.phase = EnginePhase.RESTARTING
        self._questions.fail("the engine restarts")
        self._handed_over = tuple(
            live.id for live in self._requests.live.values() if live.is_handed_over
        )
        self._trials.on_passed(each.id for each in self._requests.live.values() if each.has_passed)
        self._requests.lose_engine()

    async def _tick(self) -> None:
        """Look after time limits, trials and the engine's progress until the supervisor ends."""
        while not await self._is_closed_within(TICK_S) and self.phase is not EnginePhase.DOWN:
            now, silent_s = time.monotonic(), self.last_progress_age_s()
            self._requests.end_late(now, is_engine_silent=silent_s > SILENT_S)
            self._judge_trial()
            if self._starter.must_renew(now):
                await asyncio.to_thread(self._starter.renew)
            if self._client is not None:
                self._watch.look(self._client, now, self._last_progress_s if silent_s else None)

    def _judge_trial(self) -> None:
        """Go on to the next suspects once those that run are cleared, or with all."""
        client = self._client
        is_busy = self._dispatching is not None and not self._dispatching.done()
        if client is None or self.phase is not EnginePhase.READY or is_busy:
            return
        for abort in self._judge.pass_group():
            client.send(abort)
        if self._judge.next_waiting() is not None:
            self._dispatching = asyncio.create_task(self._dispatch(client))

    async def _next(self, end: EngineEnd) -> EngineClient | None:
        """Start the engine that follows one that has ended, after a while; return None if there is
        none to follow."""
        while True:
            cause = self._watch.cause_of(end)
            if cause.may_be_of_a_request:  # one whose record is torn may have run any that it had
                self._judge.on_crash(self._handed_over if end.ran is None else end.ran)
            has_progressed = self._has_stepped or self._trials.group is not None
            delay_s = self._policy.delay_s(time.monotonic(), has_progressed=has_progressed)
            self._has_stepped = False
            told = f"{end.message} ({cause}, exit code {end.exit_code})"
            if delay_s is None:
                self._give_up(f"{told}, after {self._policy.num_recent} restarts in ten minutes")
                logger.error("%s: it is not restarted", self.down_reason)
                return None
            logger.error("%s: it is restarted in %.1f s", told, delay_s)
            self._subscriber.on_engine_lost(cause)
            if await self._is_closed_within(delay_s):
                return None
            client = self._client = self._open()
            try:
                await client.start()
            except OSError as error:
                end = EngineEnd(0, unusable=str(error), ran=())
                continue
            if self._closing.is_set():
                await client.close()
                return None
            return client

    async def _is_closed_within(self, delay_s: float) -> bool:
        """Wait for `delay_s` seconds; return whether the supervisor is closed by then."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay_s)
        return self._closing.is_set()

    def _give_up(self, reason: str) -> None:
        """Give every request back: no engine follows."""
        self.phase = EnginePhase.DOWN
        self.down_reason = reason
        self._requests.give_back_all(reason)
        self._questions.fail(reason)
