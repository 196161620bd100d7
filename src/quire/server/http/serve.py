"""One server process: bind, answer, drain, end.

first signal    readiness turns red, new requests get 503, running ones finish
time is up      what still runs gets an error event
then            connections close, the engine ends, exit code 0
second signal   everything ends at once
"""

import asyncio
import gc
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from types import FrameType
from typing import TypeAlias

import uvicorn
import uvloop
from starlette.types import ASGIApp

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engine.launch import LaunchedEngine
from quire.engine.supervision.subscriber import EngineSubscriber
from quire.engine.supervision.supervisor import EngineSupervisor
from quire.progress import Progress
from quire.server.batches.store import StoreError
from quire.server.cli.exit_codes import FAILED_START
from quire.server.cli.ready_message import ready_text
from quire.server.config import ServerConfig
from quire.server.engine_protocol import OpenEngine
from quire.server.http.app import build_app, build_queue, build_service
from quire.server.http.freed_memory import return_large_blocks
from quire.server.http.listen import BACKLOG, local_url_of
from quire.server.http.plain_http import ConnectionRules, PlainHttp
from quire.server.service import Service
from quire.server.sources import Sources

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 5
NUM_LISTENERS = 16
"""The event loop accepts one connection from each listener in one iteration. With so many listeners
a crowd is let in faster, and a client behind it does not wait for all that the crowd asks."""


Launched: TypeAlias = Sequence[tuple[EngineConfig, LaunchedEngine]]
"""Engines that were launched before the server was imported, and their configurations."""


class DrainingServer(uvicorn.Server):
    """uvicorn stops taking connections at the first signal; this one first stops taking work."""

    def __init__(self, app: ASGIApp, service: Service, tls: ssl.SSLContext | None = None) -> None:
        self._rules = ConnectionRules(service.config.http, service.metrics.on_refused)
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
        self._deadline_s: float | None = None
        self._num_signals = 0
        self.loading = Progress(sys.stderr, _log_phase, unit="")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections, as uvicorn does, but for the times of TLS, which it leaves at
        a minute for the handshake and half of one for the farewell."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        assert not self.lifespan.should_exit and sockets is not None
        limits, loop = self.service.config.http, asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._build_protocol,
                sock=each,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=limits.head_timeout_s,
                ssl_shutdown_timeout=limits.linger_s,
            )
            for each in sockets
        ]
        self.started = True

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
        starting = self.service.starting_model
        if starting is not None and self.service.failure is None:
            self.loading.show(*starting.engine.progress)
        for model in self.service.models:
            model.log_if_stuck()
        return leaves

    def _drained(self) -> bool:
        service = self.service
        now = service.sources.clock()
        if self._deadline_s is None:
            service.drain()
            self._deadline_s = now + service.config.shutdown_timeout_s
            logger.info("draining: %d requests are open", service.num_open)
        num_taken = service.num_open - service.bodies.num_reading  # those will be refused anyway
        if num_taken and now < self._deadline_s:
            return False
        if num_taken:
            logger.warning("out of time: ending %d requests", num_taken)
        return True


def _log_phase(phase: str) -> None:
    logger.info("loading: %s", phase)


def opener(launched: Launched, supervision: SupervisionConfig) -> OpenEngine:
    """Return what opens engines: those that were launched already, each once, and new ones."""
    left = list(launched)

    def open_engine(config: EngineConfig, subscriber: EngineSubscriber) -> EngineSupervisor:
        for index, (of_config, engine) in enumerate(left):
            if of_config == config:
                del left[index]
                return EngineSupervisor(config, subscriber, supervision, engine)
        return EngineSupervisor(config, subscriber, supervision)

    return open_engine


async def serve(
    config: ServerConfig,
    listener: socket.socket,
    launched: Launched,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until a signal or a failed start. Return the exit code."""
    sources = Sources(clock=time.monotonic, now=time.time, random_bytes=os.urandom)
    service = build_service(config, opener(launched, config.supervision), sources)
    try:
        queue = build_queue(service)
    except StoreError as error:
        logger.error("cannot start: %s", error)
        await service.close()
        return FAILED_START

    def on_ready() -> None:
        gc.collect()
        gc.freeze()  # what was set up stays: no collection need look at it again
        server.loading.close()
        loaded = [model for model in service.models if model.is_loaded]
        startup_s = loaded[0].startup_s if loaded else {}
        url = local_url_of(listener, config.scheme)
        logger.info("%s", ready_text(config, url, startup_s))

    def stop() -> None:
        server.should_exit = True

    app = build_app(service, on_ready, on_failed_start=stop, queue=queue)
    server = DrainingServer(app, service, tls)
    with closing(server.loading):
        await server.serve(sockets=[listener, *(listener.dup() for _ in range(NUM_LISTENERS - 1))])
    if server.force_exit:
        await server.lifespan.shutdown()  # uvicorn leaves it out: the engine is to end, not to hang
    return FAILED_START if service.failure is not None else 0


def run(
    config: ServerConfig,
    listener: socket.socket,
    launched: Launched,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve in an event loop of its own. Return the exit code."""
    return_large_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config, listener, launched, tls))
