"""The application: routes, errors in OpenAI's shape, and the engine's life around them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from quire.engines.protocol import OpenEngine
from quire.server.apis.batches.line_runner import LineRunner
from quire.server.apis.batches.queue import BatchQueue
from quire.server.apis.batches.routes import Batches
from quire.server.apis.batches.store import BatchStoreLimits, open_store
from quire.server.apis.prefixes.shared_file import load_shared_prefixes
from quire.server.apis.routing import share
from quire.server.app.apis import ROUTE_PATHS, ROUTERS
from quire.server.app.error_responses import error_response
from quire.server.app.field_names import known_part
from quire.server.app.middleware import DOCS_ASSETS, RequestMiddleware
from quire.server.app.openapi.document import describe
from quire.server.app.page.files import read_page_files
from quire.server.app.page.routes import router as page
from quire.server.config import ServedModelConfig, ServerConfig
from quire.server.errors import NOT_FOUND, UPGRADE_REQUIRED, RequestError
from quire.server.generation.service import Observers, Service
from quire.server.http.compression import Compression
from quire.server.http.report_headers import IGNORED, WARNINGS
from quire.server.http.trace_context import TRACEPARENT
from quire.server.models.model_prefixes import ModelPrefixes
from quire.server.models.served_model import Openers, ServedModel, Subscribers
from quire.server.observability.kv_event_feed import KVEventFeed
from quire.server.observability.live.live_feed import LiveFeed
from quire.server.observability.load_header import REPORT_HEADER
from quire.server.observability.loop_lag import LoopLagTimer
from quire.server.observability.metrics import ModelMetrics, ServerMetrics
from quire.server.observability.timelines import Timelines
from quire.server.sources import Sources
from quire.server.tenancy.rates import RATE_HEADERS
from quire.server.tenancy.tenants import ARRIVAL, IncomingRequest, build_tenants
from quire.version import __version__

logger = logging.getLogger(__name__)

CORS_METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED_HEADERS = (
    *("x-request-id", "request-id", TRACEPARENT, "retry-after", REPORT_HEADER, *RATE_HEADERS),
    *(WARNINGS, IGNORED),
)
"""Headers of answers that pages of allowed origins may read, beside those that all pages may."""
PREFLIGHT_AGE_S = 600
"""A browser asks again after so long whether it may call."""

EVENT_ID_BITS = 20
"""Ids of events start at the time, so that those of a restarted server are above the old ones, up
to a million events a second."""


def build_service(config: ServerConfig, open_engine: OpenEngine, sources: Sources) -> Service:
    """Build what the application needs. It must be called inside a running event loop."""
    secret = config.tenant_secret
    tenants = build_tenants(
        config.api_keys,
        sources.random_bytes(32) if secret is None else secret.encode(),
        config.admin_key,
    )
    openers = Openers(open_engine, load_shared_prefixes)
    timelines = Timelines(config.timeline_requests, are_apart=tenants.are_apart)

    def served(model: ServedModelConfig) -> ServedModel:
        feed = KVEventFeed(first_id=int(sources.now()) << EVENT_ID_BITS)
        metrics, prefixes = ModelMetrics(tenants.all_names), ModelPrefixes()
        live = LiveFeed(model.name, metrics, sources, are_apart=tenants.are_apart)
        subscribers = Subscribers(metrics, feed, timelines, prefixes, live)
        return ServedModel(model, config, openers, subscribers, sources)

    observers = Observers(ServerMetrics(ROUTE_PATHS), timelines)
    return Service(config, [served(each) for each in config.models], tenants, observers, sources)


def build_queue(service: Service) -> BatchQueue | None:
    """Build what runs the batches of a service; None without a directory for them. Raises
    StoreError."""
    config = service.config
    if config.batch_dir is None:
        return None
    limits = BatchStoreLimits(config.batch_quota)
    return BatchQueue(open_store(Path(config.batch_dir), limits, service.sources.now), service)


def build_app(
    service: Service,
    on_ready: Callable[[], None] = lambda: None,
    on_failed_start: Callable[[], None] = lambda: None,
    queue: BatchQueue | None = None,
) -> FastAPI:
    """Build the application around a service. `queue` runs its batches, where it has any.

    on_ready: called once requests are taken.
    on_failed_start: called if the engine or the tokenizer cannot be started.
    """

    def begin() -> None:
        if queue is not None:
            queue.start(LineRunner(app, service))
        on_ready()

    app = FastAPIOffline(
        title="Quire",
        version=__version__,
        lifespan=lambda app: _lifespan(service, queue, begin, on_failed_start),
        redirect_slashes=False,
        redoc_url=None,
        static_url=DOCS_ASSETS,
    )
    share(app, service, Batches(service, queue))
    for router in ROUTERS:
        app.router.routes += router.routes  # `include_router` would match each path twice
    if service.config.has_page:
        read_page_files()
        app.router.routes += page.routes
    describe(app, service.config.model.name)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    _add_layers(app, service)
    return app


def _add_layers(app: FastAPI, service: Service) -> None:
    """Put the layers around the routes, the innermost first."""
    app.add_middleware(Compression)
    app.add_middleware(RequestMiddleware, service=service)
    _allow_pages(app, service.config.allowed_origins)


def _allow_pages(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of these origins read the answers, errors too, and answer the preflights of their
    browsers, which come without a key. What comes without an `Origin` pays for none of it."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=CORS_METHODS,
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
            max_age=PREFLIGHT_AGE_S,
        )


@asynccontextmanager
async def _lifespan(
    service: Service,
    queue: BatchQueue | None,
    on_ready: Callable[[], None],
    on_failed_start: Callable[[], None],
) -> AsyncIterator[None]:
    """Start the service at the beginning of the application's life; end what runs at its end."""
    lag_timer = LoopLagTimer(service.metrics, service.sources.clock)
    starting = asyncio.create_task(_start(service, on_ready, on_failed_start))
    try:
        yield
    finally:
        lag_timer.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if queue is not None:
            await queue.close()
        await service.close()
        if service.spans is not None:
            await asyncio.to_thread(service.spans.close)


async def _start(
    service: Service, on_ready: Callable[[], None], on_failed_start: Callable[[], None]
) -> None:
    try:
        await service.start()
    except Exception as error:  # a start that fails in a way nobody thought of is still failed
        logger.exception("the start failed")
        service.failure = f"{type(error).__name__}: {error}"
    if service.failure is None:
        on_ready()
    elif not service.draining:
        logger.error("cannot start: %s", service.failure)
        on_failed_start()


async def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error_response(request, error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: an unknown path, a method that a path has not."""
    assert isinstance(error, HTTPException)
    if error.status_code != NOT_FOUND and "sec-websocket-key" in request.headers:
        return _no_websocket(request)
    where = f"{request.method} {request.url.path}"
    message = f"There is no {where}." if error.status_code == NOT_FOUND else str(error.detail)
    code = "not_found" if error.status_code == NOT_FOUND else "method_not_allowed"
    refusal = RequestError(message, code=code, status=error.status_code)
    response = _error_response(request, refusal)
    response.headers.update(error.headers or {})
    if "allow" in response.headers:  # a path has a route for each of its methods
        response.headers["allow"] = ", ".join(sorted(_methods_of(request)))
    return response


def _no_websocket(request: Request) -> Response:
    """Answer a WebSocket's handshake at a path that is asked by POST. With this status a client
    such as Codex goes on over HTTP at once, where after others it tries again for seconds."""
    message = "This server has no WebSockets: send the request by POST."
    refusal = RequestError(message, code="no_websocket", status=UPGRADE_REQUIRED)
    response = _error_response(request, refusal)
    response.headers.update({"upgrade": "HTTP/1.1", "connection": "upgrade"})
    return response


def _methods_of(request: Request) -> set[str]:
    """Return the methods that the path of a request has: those of the routes of one pattern, the
    first that fits it. A later one, of names with slashes, would fit more paths than it is for."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    fitting = [each for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    own = (each for each in fitting if each.path == fitting[0].path)
    return {method for each in own for method in each.methods or ()}


def _error_response(request: Request, error: RequestError) -> Response:
    arrival = request.scope.get(ARRIVAL)
    if not isinstance(arrival, IncomingRequest):
        return error_response(error, request.scope["path"], "")
    if arrival.figures is not None:
        arrival.figures.fail(error.code, known_part(error.param))
    return error_response(error, request.scope["path"], arrival.request_id)
