"""One server process: bind, answer, drain, end.

first signal    readiness turns red, new requests get 503, running ones finish
time is up      what still runs gets an error event
then            connections close, the engine ends, exit code 0
second signal   everything ends at once

A server whose listening socket is inherited refuses nobody: it takes connections once its models
are loaded and none from the first signal on, when another takes them, and answers what comes over
those it has until they end. What is not taken waits in the socket.
"""

import asyncio
import gc
import logging
import os
import socket
import ssl
import sys
import time
from contextlib import closing
from functools import partial
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from quire.engines.protocol import OpenEngine
from quire.logs import FIELDS
from quire.progress import Progress
from quire.server.apis.batches.queue import BatchQueue
from quire.server.apis.batches.store import StoreError, StoreInUse
from quire.server.app.app import build_app, build_queue, build_service
from quire.server.app.exit_codes import FAILED_START
from quire.server.app.freed_memory import return_large_blocks
from quire.server.app.notifier import Notifier
from quire.server.app.ready_message import ready_text
from quire.server.config import ServerConfig
from quire.server.generation.service import Service
from quire.server.http.listen import BACKLOG, local_url_of
from quire.server.http.plain_http import ConnectionRules, PlainHttp
from quire.server.sources import Sources

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("quire.access")

CLOSE_PATIENCE_S = 5
NUM_LISTENERS = 16
"""The event loop accepts one connection from each listener in one iteration. With so many listeners
a crowd is let in faster, and a client behind it does not wait for all that the crowd asks."""
STORE_RETRY_S = 0.5
SWITCH_INTERVAL_S = 0.001
"""The event loop waits so long for the interpreter's lock where a thread reads a body, Python's
own 5 ms for each of the threads otherwise."""


def _on_refused(service: Service, code: str) -> None:
    """Count and log what a connection refused before there was a request with a path."""
    service.metrics.on_refused(code)
    access_logger.info(
        "connection ended, error_code=%s", code, extra={FIELDS: {"error_code": code}}
    )


class DrainingServer(uvicorn.Server):
    """uvicorn stops taking connections at the first signal; this one first stops taking work, or
    with an inherited socket connections. `notifier` is told how the server is."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        tls: ssl.SSLContext | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._is_inherited = service.config.is_socket_inherited
        self._rules = ConnectionRules(
            service.config.http,
            partial(_on_refused, service),
            is_ending=lambda: self._is_inherited and service.draining,
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(PlainHttp, self._rules),  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=CLOSE_PATIENCE_S,
            )
        )
        self.service = service
        self._tls = tls
        self._notifier = notifier or Notifier(None)
        self._listeners: list[socket.socket] = []
        self._is_ready = False
        self._deadline_s: float | None = None
        self._least_end_s = 0.0
        self._num_signals = 0
        self.loading = Progress(sys.stderr, _log_phase, unit="")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to load, and to take connections unless others may take them meanwhile."""
        await self.lifespan.startup()
        assert not self.lifespan.should_exit and sockets is not None
        self._listeners = sockets
        self.servers = []
        if not self._is_inherited:
            await self._take_connections()
        self.started = True

    async def _take_connections(self) -> None:
        """Begin to take connections, as uvicorn does, but for the times of TLS, which it leaves at
        a minute for the handshake and half of one for the farewell."""
        limits, loop = self.service.config.http, asyncio.get_running_loop()
        has_tls = self._tls is not None
        self.servers = [
            await loop.create_server(
                self._build_protocol,
                sock=each,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=limits.head_timeout_s if has_tls else None,
                ssl_shutdown_timeout=limits.linger_s if has_tls else None,
            )
            for each in self._listeners
        ]

    def _build_protocol(self) -> PlainHttp:
        return PlainHttp(self._rules, self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; the next tick acts on it."""
        self._num_signals += 1
        if self._num_signals > 1:
            self.should_exit = True
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        leaves = await super().on_tick(counter)
        if self._num_signals and not leaves:
            leaves = self._drained()
        if leaves:
            self.service.drain()
            self.service.cut()
        elif not self._num_signals and not self._is_ready:
            await self._get_ready()
        for model in self.service.models:
            model.log_if_stuck()
        return leaves

    async def _get_ready(self) -> None:
        """Tell how far loading is; when it is done take connections, if that had to wait."""
        service, starting = self.service, self.service.starting_model
        if starting is not None and starting.waits_for_memory:
            self._notifier.status(f"waits for memory: {starting.down_reason}")
        elif starting is not None and service.failure is None:
            self.loading.show(*starting.engine.progress)
            phase, done, total = starting.engine.progress
            self._notifier.status(f"loading {starting.name}: {phase} {done}/{total}")
        if service.has_started:
            self._is_ready = True
            if self._is_inherited:
                await self._take_connections()
            self._notifier.ready()

    def _drained(self) -> bool:
        """Return whether nothing is left to answer. The first call begins the drain."""
        service, now = self.service, self.service.sources.clock()
        if self._deadline_s is None:
            self._deadline_s = now + service.config.shutdown_timeout_s
            self._begin_drain(now)
            if self._is_inherited:
                return not self._is_ready
        num_left = self._num_left(now)
        self._notifier.status(_drain_status(service))
        if num_left and now < self._deadline_s:
            return False
        if num_left:
            logger.warning("out of time: ending %d requests", service.num_open)
        return True

    def _begin_drain(self, now_s: float) -> None:
        self.service.drain()
        logger.info("%s", _drain_status(self.service))
        self._notifier.stopping(_drain_status(self.service))
        if not self._is_inherited:
            return
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            assert isinstance(connection, PlainHttp)
            connection.end_soon()
        if self._tls is not None:  # a connection is known once its handshake is done
            self._least_end_s = now_s + self.service.config.http.ending_idle_s

    def _num_left(self, now_s: float) -> int:
        """Return how much must still end: connections where nobody is refused, else the requests
        that are not half read, which will be refused anyway."""
        if self._is_inherited:
            return len(self.server_state.connections) or int(now_s < self._least_end_s)
        return self.service.num_open - self.service.bodies.num_reading


def _drain_status(service: Service) -> str:
    return f"draining: {service.num_open} requests are open"


def _log_phase(phase: str) -> None:
    logger.info("loading: %s", phase)


def _ready_text(service: Service, url: str) -> str:
    loaded = [model for model in service.models if model.is_loaded]
    startup_s = loaded[0].startup_s if loaded else {}
    tokenizer = service.models[0].tokenizer
    is_chat = tokenizer is not None and tokenizer.template is not None
    return ready_text(service.config, url, startup_s, is_chat=is_chat)


async def serve(
    config: ServerConfig,
    listener: socket.socket,
    open_engine: OpenEngine,
    tls: ssl.SSLContext | None,
    notifier: Notifier,
) -> int:
    """Serve until a signal or a failed start. Return the exit code."""
    sources = Sources(clock=time.monotonic, now=time.time, random_bytes=os.urandom)
    service = build_service(config, open_engine, sources)
    try:
        queue = await _opened_queue(service, notifier)
    except StoreError as error:
        logger.error("cannot start: %s", error)
        await service.close()
        return FAILED_START

    def on_ready() -> None:
        gc.collect()
        gc.freeze()  # what was set up stays: no collection need look at it again
        server.loading.close()
        logger.info("%s", _ready_text(service, local_url_of(listener, config.scheme)))

    def stop() -> None:
        server.should_exit = True

    app = build_app(service, on_ready, on_failed_start=stop, queue=queue)
    server = DrainingServer(app, service, tls, notifier)
    listeners = [listener, *(listener.dup() for _ in range(NUM_LISTENERS - 1))]
    with closing(server.loading):
        async with notifier.watched():
            await server.serve(sockets=listeners)
    if server.force_exit:
        await server.lifespan.shutdown()  # uvicorn leaves it out: the engine is to end, not to hang
    if service.failure is None:
        return 0
    notifier.status(f"cannot start: {service.failure}")
    return FAILED_START


async def _opened_queue(service: Service, notifier: Notifier) -> BatchQueue | None:
    """Build what runs batches. A server that drains on the same socket may have the
    directory still, and is waited for. Raises StoreError."""
    config, clock = service.config, service.sources.clock
    patience_s = config.predecessor_s if config.is_socket_inherited else 0.0
    until_s, is_told = clock() + patience_s, False
    while True:
        try:
            return build_queue(service)
        except StoreInUse as error:
            if clock() >= until_s:
                raise
            if not is_told:
                logger.warning("waits %.0f s at most: %s", patience_s, error)
                notifier.status(f"waits: {error}")
            is_told = True
        await asyncio.sleep(STORE_RETRY_S)


def run(
    config: ServerConfig,
    listener: socket.socket,
    open_engine: OpenEngine,
    tls: ssl.SSLContext | None,
    notifier: Notifier,
) -> int:
    """Serve in an event loop of its own. Return the exit code."""
    return_large_blocks()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, listener, open_engine, tls, notifier))
