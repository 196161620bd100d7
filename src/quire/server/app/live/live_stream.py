"""Serves `GET /v1/live`: what a model holds and does, as server-sent events, until the client goes
or the server drains.
"""

import asyncio
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.apis.openai.response import KEEP_ALIVE, STREAM_HEADERS
from quire.server.generation.service import Service
from quire.server.models.served_model import ServedModel
from quire.server.observability.live.live_feed import LiveWatcher, event_of
from quire.server.observability.live.wire import LiveEngine, LiveEngineState

LOOK_S = 0.5
"""The state of the engine is looked after so often."""


class LiveStream(Response):
    """Streams what a watcher reads, with the states of the model's engine between. It closes the
    watcher when it ends."""

    def __init__(self, model: ServedModel, watcher: LiveWatcher, service: Service) -> None:
        super().__init__()
        self._model = model
        self._watcher = watcher
        self._drains = service.drains
        self._sources = service.sources
        self._keep_alive_s = service.config.sse_keep_alive_interval_s
        self._sent_s = service.sources.clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = list(STREAM_HEADERS)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            emit = asyncio.create_task(self._emit(send))
            gone = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({emit, gone, self._drains}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                emit.cancel()
                gone.cancel()
                await asyncio.gather(emit, gone, return_exceptions=True)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._watcher.close()

    async def _emit(self, send: Send) -> None:
        told: LiveEngineState | None = None
        while True:
            state = _state_of(self._model)
            if state is not told:
                now = round(self._sources.now(), 3)
                await self._send(send, event_of(LiveEngine(now, self._model.name, state)))
                told = state
            if state is LiveEngineState.LOADED:
                with suppress(TimeoutError):
                    events = await asyncio.wait_for(self._watcher.read(), LOOK_S)
                    await self._send(send, b"".join(events))
            else:
                await asyncio.sleep(LOOK_S)
            silent_s = self._sources.clock() - self._sent_s
            if self._keep_alive_s and silent_s >= self._keep_alive_s:
                await self._send(send, KEEP_ALIVE)

    async def _send(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._sent_s = self._sources.clock()


def _state_of(model: ServedModel) -> LiveEngineState:
    return LiveEngineState.RESTARTING if model.is_restarting else LiveEngineState(model.state)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
