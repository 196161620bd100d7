"""Keeps an engine running: where one ends, another goes on with every request that has not ended.

Streams belong to the supervisor and outlive engines; their readers see a pause. An engine is
`EngineClient`; what is kept of a request is `LiveRequest`.

        start          Ready                          ends
    ──────────► LOADING ─────► READY ───────────────────────────► RESTARTING ──► DOWN
                                 ▲   all that has not ended,       │    too often, within minutes
                                 └── in its order ─────────────────┘
"""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from functools import partial

from quire.cache.sharing import SharingTerms
from quire.engine.client import EngineClient, EngineEnd, Phase
from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.launch import LaunchedEngine, launch
from quire.engine.messages import Abort, EngineFacts, EngineOutput, ResetPrefixCache, Unpin
from quire.engine.supervision.end_cause import cause_of
from quire.engine.supervision.limits import as_before
from quire.engine.supervision.live_request import LiveRequest
from quire.engine.supervision.probes import Probes
from quire.engine.supervision.request_table import RequestTable
from quire.engine.supervision.restart_policy import RestartPolicy
from quire.engine.supervision.subscriber import EngineSubscriber
from quire.engine.token_stream import EngineDown, Refused, TokenStream
from quire.scheduler.prefix_probe import PrefixProbe
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest
from quire.scheduler.step import Refusal

logger = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 32 << 20
"""No request is sent while the engine has left more bytes than these unread."""
SENT_AT_ONCE = 16
"""So many requests are handed to a new engine in one iteration of the event loop."""
EXPIRY_POLL_S = 0.05
"""Time limits are looked after so often while there is no engine."""


class EngineSupervisor:
    """Runs engines with one configuration, one after another, on the running event loop.

    `phase`, `facts` (once an engine was ready) and `down_reason` may be read at any time. It is
    DOWN where the first engine could not be loaded, if for want of memory then it `lacks_memory`,
    or where engines have ended too often.
    `launched` is an engine process that was started with `config`.
    """

    def __init__(
        self,
        config: EngineConfig,
        subscriber: EngineSubscriber,
        supervision: SupervisionConfig,
        launched: LaunchedEngine | None = None,
    ) -> None:
        self.phase = Phase.STARTING
        self.facts: EngineFacts | None = None
        self.down_reason: str | None = None
        self.lacks_memory = False
        self._config = config
        self._subscriber = subscriber
        self._launched = launched
        self._policy = RestartPolicy(supervision.max_engine_restarts)
        self._client: EngineClient | None = None
        self._requests = RequestTable(subscriber.on_ended_here)
        self._pending: deque[LiveRequest] = deque()
        self._probes = Probes()
        self._has_stepped = False
        self._is_reset_due = False
        self._last_progress_s = time.monotonic()
        self._lost_s = 0.0
        self._supervising: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def progress(self) -> tuple[str, int, int]:
        """The phase of the load of the engine that runs or is to, and how much of it is done."""
        return ("process", 0, 1) if self._client is None else self._client.progress

    @property
    def process_id(self) -> int | None:
        """The id of the engine's process, or None while there is none."""
        return None if self._client is None else self._client.process_id

    @property
    def num_unfinished(self) -> int:
        """The number of requests that were submitted and have not ended."""
        return len(self._requests.live)

    def last_progress_age_s(self) -> float:
        """Return the seconds since the engine last completed a step, or 0 while it has no work."""
        if not self._requests.live or self.phase is not Phase.READY:
            return 0.0
        return time.monotonic() - self._last_progress_s

    async def start(self) -> None:
        """Start the process unless it runs already, and return at once: `phase` and `progress` tell
        how far loading is."""
        client = self._client = self._open(self._launched)
        await client.start()
        self.phase = Phase.LOADING
        self._supervising = asyncio.create_task(self._supervise(client))

    def submit(self, request: NewRequest) -> TokenStream:
        """Hand a request to the engine, or to the next one while there is none; its stream tells
        whether the scheduler has `accepted` it.

        Raises EngineDown; raises Refused if the id is in use or too much is unanswered already.
        """
        if self.phase not in (Phase.READY, Phase.RESTARTING):
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        self._refuse_beyond_bounds(request.id)
        now = time.monotonic()
        if not self._requests.live:
            self._last_progress_s = now
        live = self._requests.add(request, now)
        if self.phase is Phase.READY:
            self._hand_over(live, now)
        else:
            self._pending.append(live)
        return live.stream

    def _refuse_beyond_bounds(self, request_id: str) -> None:
        """Raise Refused if as much is unanswered as the engine could ever accept."""
        most = self._config.scheduling.max_num_queued_reqs + (
            self.facts.max_num_seqs if self.facts else 0
        )
        num_accepting = len(self._requests.accepting)
        if self.phase is Phase.READY and self._client is not None:
            num_unread = self._client.num_unread_bytes
        else:
            num_unread = self._requests.num_accepting_bytes
        if num_accepting < most and num_unread <= MAX_UNREAD_BYTES:
            return
        message = (
            f"the engine has not answered {num_accepting} requests nor read {num_unread} "
            f"bytes of them; at most {most} requests and {MAX_UNREAD_BYTES} bytes are kept for it"
        )
        raise Refused(Refusal(request_id, Reason.QUEUE_FULL, message))

    def _hand_over(self, live: LiveRequest, now: float) -> None:
        if self._client is not None:
            live.is_handed_over = True
            self._client.send(live.submission(now))

    def abort(self, request_id: str) -> None:
        """End a request unless it has ended; its stream ends with a finish, a step after the engine
        has read this (behind megabytes of new prompts that may take some steps), or at once while
        no engine has it.
        """
        live = self._requests.live.get(request_id)
        if live is None:
            return
        if live.is_handed_over and self._client is not None:
            live.is_aborted = True
            self._client.send(Abort(request_id))
        else:
            self._requests.end(live, Reason.ABORTED)

    def reset_prefix_cache(self) -> None:
        """Make what is cached now unfindable for requests submitted after this. `num_resets` in the
        next outputs tells when it was done. Raises EngineDown.
        """
        if self.phase is Phase.RESTARTING:
            self._is_reset_due = True
        else:
            self._ready_client().send(ResetPrefixCache())

    def unpin(self, request_id: str) -> None:
        """Let the blocks be evicted that a request has pinned in the engine, if it has."""
        if self._client is not None:
            self._client.send(Unpin(request_id))

    def _ready_client(self) -> EngineClient:
        """Return the engine. Raises EngineDown."""
        if self.phase is not Phase.READY or self._client is None:
            raise EngineDown(self.down_reason or f"the engine is {self.phase}")
        return self._client

    async def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe:
        """Return what of a prompt is cached when the engine has read this, between two steps.

        Raises EngineDown, also where the engine ends before it answers; raises Refused if too many
        probes are unanswered already.
        """
        return await self._probes.ask(self._ready_client().send, token_ids, sharing)

    async def close(self) -> None:
        """End the engine process, in whatever state: close the socket, and kill it if it takes too
        long."""
        self._closing.set()
        if self._client is not None:
            await self._client.close()
        for task in (self._supervising, self._expiring):
            if task is not None:
                await task

    def _open(self, launched: LaunchedEngine | None = None) -> EngineClient:
        if launched is not None:
            return EngineClient(lambda: launched, self._take_output)
        config = self._config if self.facts is None else as_before(self._config, self.facts)
        return EngineClient(partial(launch, config), self._take_output)

    def _take_output(self, output: EngineOutput) -> None:
        self._last_progress_s = time.monotonic()
        self._has_stepped |= output.step > 0
        self._subscriber.on_output(output)
        self._probes.take(output.probes)
        self._requests.take(output)

    async def _supervise(self, client: EngineClient) -> None:
        """Follow one engine after another until the supervisor is closed or gives up."""
        try:
            following: EngineClient | None = client
            while following is not None:
                following = await self._follow(following)
            if self.phase is not Phase.DOWN:
                self._give_up("the engine was closed")
        except Exception as error:  # no stream may hang for a defect of this
            logger.exception("the supervision of the engine failed")
            self._give_up(f"{type(error).__name__}: {error}")

    async def _follow(self, client: EngineClient) -> EngineClient | None:
        """Serve with an engine until it ends; return the one that follows it, if one does."""
        if await client.loaded():
            self.facts = client.facts
            await self._hand_over_all(client)
        await client.disconnected()
        if self.facts is not None and not self._closing.is_set():
            self._pause()
        end = await client.ended()
        if self._closing.is_set() or self.facts is None:
            self.lacks_memory = end.failed is not None and end.failed.lacks_memory
            self._give_up(end.message)
            if not self._closing.is_set() and end.failed is None:
                logger.error("%s (exit code %d)", self.down_reason, end.exit_code)
            return None
        return await self._next(end)

    async def _hand_over_all(self, client: EngineClient) -> None:
        """Hand everything that has not ended to an engine that is ready, in its order."""
        num_sent = num_resumed = 0
        if self._is_reset_due:
            self._is_reset_due = False
            client.send(ResetPrefixCache())
        while self._pending and client.phase is Phase.READY:
            live = self._pending.popleft()
            if self._requests.live.get(live.id) is not live:
                continue
            self._hand_over(live, time.monotonic())
            num_sent += 1
            num_resumed += live.stream.is_accepted
            if num_sent % SENT_AT_ONCE == 0:
                await asyncio.sleep(0)
                await client.drain()
        if client.phase is Phase.READY:
            self._go_on(num_resumed)

    def _go_on(self, num_resumed: int) -> None:
        """Note that the engine has all requests."""
        self._has_stepped = False
        self._last_progress_s = now = time.monotonic()
        if self.phase is Phase.RESTARTING:
            lost_s = now - self._lost_s
            logger.warning(
                "an engine is there again after %.2f s: %d requests go on", lost_s, num_resumed
            )
            self._subscriber.on_engine_resumed(num_resumed, lost_s)
        self.phase = Phase.READY

    def _pause(self) -> None:
        """Note that no engine has any request: all wait for the next one."""
        if self.phase is not Phase.RESTARTING:
            self._lost_s = time.monotonic()
        self.phase = Phase.RESTARTING
        self._probes.fail("the engine restarts")
        self._requests.lose_engine()
        self._pending = deque(self._requests.live.values())
        if self._expiring is None or self._expiring.done():
            self._expiring = asyncio.create_task(self._expire())

    async def _expire(self) -> None:
        """End the requests whose time limits pass while no engine has them."""
        while self.phase is Phase.RESTARTING:
            self._requests.end_late(time.monotonic())
            await asyncio.sleep(EXPIRY_POLL_S)

    async def _next(self, end: EngineEnd) -> EngineClient | None:
        """Start the engine that follows one that has ended, after a while; return None if there is
        none to follow."""
        while True:
            cause = cause_of(end)
            delay_s = self._policy.delay_s(time.monotonic(), has_progressed=self._has_stepped)
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
                end = EngineEnd(0, None, str(error))
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
        """End every stream: no engine follows."""
        self.phase = Phase.DOWN
        self.down_reason = reason
        self._requests.fail_all(reason)
        self._probes.fail(reason)
        self._pending.clear()
