"""The real server around a scripted engine, in a thread of the test process."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from itertools import repeat
from types import MappingProxyType
from typing import TypeVar

import httpx
import uvloop

from quire.engine.config import EngineConfig, ModelConfig
from quire.engines.process.subscriber import EngineSubscriber
from quire.server.app.app import build_app, build_queue, build_service
from quire.server.app.serve import DrainingServer
from quire.server.config import ServedModelConfig, ServerConfig
from quire.server.http.listen import bind, url_of
from quire.server.http.plain_http import PlainHttp
from quire.server.http.tls import build_tls
from quire.server.sources import Sources
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from tests.server.documented import held_to_document
from tests.server.scripted_engine import Script, ScriptedEngine, repeat_prompt

BUNDLED = str(files("quire.models") / "bundled")
MODEL = "test-model"
Made = TypeVar("Made")
NO_SCRIPTS: Mapping[str, Script] = MappingProxyType({})


def plain_config(model: str = BUNDLED) -> ServerConfig:
    served = ServedModelConfig(EngineConfig(ModelConfig(model)), (MODEL, "other-name"))
    return ServerConfig((served,), port=0)


def with_model(config: ServerConfig, **changes: object) -> ServerConfig:
    """The same configuration with changes of its first model."""
    first, *others = config.models
    return replace(config, models=(replace(first, **changes), *others))  # type: ignore[arg-type]


def bundled_tokenizer() -> TextTokenizer:
    return load_tokenizer(BUNDLED, None)


class Served:
    """A running server: `engine` is its first scripted engine, `engines` are all that were opened
    by now, and `client` talks to it."""

    def __init__(
        self,
        server: DrainingServer,
        engines: list[ScriptedEngine],
        url: str,
        trust: ssl.SSLContext | bool = True,
    ) -> None:
        self.server = server
        self.engines = engines
        self.engine = engines[0]
        self.url = url
        hooks = {"response": [held_to_document(url, trust)]}
        self.client = httpx.Client(base_url=url, verify=trust, timeout=30, event_hooks=hooks)
        self._loop = asyncio.get_running_loop()

    def do(self, action: Callable[[], Made]) -> Made:
        """Run in the server's thread: what asyncio objects need."""

        async def run() -> Made:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10)

    def connections(self, client: socket.socket | None = None) -> list[PlainHttp]:
        """All that are open, or the one that this socket is the other end of."""
        name = None if client is None else client.getsockname()
        connections = self.do(lambda: list(self.server.server_state.connections))
        ours = [each for each in connections if isinstance(each, PlainHttp)]
        return [each for each in ours if name in (None, each.client)]

    def complete(self, **fields: object) -> httpx.Response:
        return self.client.post("/v1/completions", json=fields)

    def chat(self, **fields: object) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json=fields)

    def metric(self, line_start: str) -> float:
        """The sum of the samples whose line begins so."""
        lines = self.client.get("/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(line_start)]
        assert values, f"no metric {line_start}"
        return sum(values)


def eventually(holds: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def hold_after_first_token(served: Served) -> None:
    """No request gets more than one or two tokens, and none ends by itself, until the engine
    may step again."""

    def script(_: object) -> Iterator[int]:
        yield 100
        served.engine.may_step.clear()
        yield from repeat(100)

    served.engine.script = script


@contextmanager
def serving(
    config: ServerConfig,
    *,
    loaded: bool = True,
    send_buffer: int | None = None,
    trust: ssl.SSLContext | bool = True,
    scripts: Mapping[str, Script] = NO_SCRIPTS,
) -> Iterator[Served]:
    """`loaded` False leaves the engine loading until the test sets `engine.starts`; `send_buffer`
    is how many bytes the system keeps of an answer that is not read; `trust` is over TLS; `scripts`
    are those of engines by the seeds of their prefix caches."""
    made: list[Served] = []
    up = threading.Event()

    async def run() -> None:
        listener = bind("127.0.0.1", 0)
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        served = _build(config, url_of(listener, config.scheme), trust, scripts)
        if not loaded:
            served.engine.starts.clear()
        made.append(served)
        up.set()
        await served.server.serve(sockets=[listener])

    thread = threading.Thread(target=_run_as_in_production, args=(run(),), daemon=True)
    thread.start()
    assert up.wait(10)
    (served,) = made
    try:
        if loaded:
            assert eventually(lambda: served.client.get("/readyz").status_code == 200, 30)
        yield served
    finally:
        served.client.close()
        served.server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def _run_as_in_production(run: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run)


def _build(
    config: ServerConfig,
    url: str,
    trust: ssl.SSLContext | bool,
    scripts: Mapping[str, Script],
) -> Served:
    """It must be called inside the event loop that will run the server."""
    engines: list[ScriptedEngine] = []

    def open_engine(engine_config: EngineConfig, subscriber: EngineSubscriber) -> ScriptedEngine:
        engines.append(ScriptedEngine(engine_config, subscriber))
        seed = engine_config.memory.prefix_caching_seed or ""
        engines[-1].script = scripts.get(seed, repeat_prompt)
        return engines[-1]

    sources = Sources(time.monotonic, time.time, lambda size: bytes(range(size)))
    service = build_service(config, open_engine, _fresh_ids(sources))
    app = build_app(service, queue=build_queue(service))
    return Served(DrainingServer(app, service, build_tls(config)), engines, url, trust)


def _fresh_ids(sources: Sources) -> Sources:
    """Random bytes that are a count: always new, and the same in every run."""
    counter = iter(range(1 << 30))
    return sources._replace(random_bytes=lambda size: next(counter).to_bytes(size, "little"))
