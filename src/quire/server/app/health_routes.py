"""Routes that tell whether the server is alive, ready and started, and what it serves with. They
answer from the first moment on.
"""

import asyncio
import dataclasses
import gzip

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import PROCESS_COLLECTOR
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.engine.messages import EngineFacts
from quire.server.app.exposition import EngineProcesses, MetricsCollector, expose
from quire.server.app.openapi.routes import OPENMETRICS
from quire.server.app.wire import Health, ModelInfo, ServerInfo, StartProgress, Startup, Version
from quire.server.config import LoadTime, ServedModelConfig, ServerConfig
from quire.server.errors import UNAVAILABLE
from quire.server.generation.service import Service
from quire.server.http.compression import GZIP, LEVEL
from quire.server.http.json_responses import json_response
from quire.server.http.negotiation import takes
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.tenancy.tenants import arrival_of
from quire.version import __version__

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_1 = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
READY = "ready"
NOT_READY = ("down", "draining", "loading", "restarting", "stuck")
"""The states of a server that takes no requests, or not all: the first that holds is told."""


class HealthRoutes:
    """Handlers of probes: a failed liveness asks for a restart, a failed readiness for no traffic,
    a failed startup for patience."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._collectors = (
            MetricsCollector(service),
            service.metrics.http,
            PROCESS_COLLECTOR,
            EngineProcesses(service),
        )

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route("/livez", self.livez, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
            Route("/health", self.readyz, methods=["GET"]),
            Route("/ping", self.readyz, methods=["GET"]),
            Route("/startupz", self.startupz, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/v1/server_info", self.server_info, methods=["GET"]),
        )

    async def livez(self, request: Request) -> Response:
        """Ask for a restart where no model could be loaded, or the engine of any has ended."""
        service = self._service
        dead = {each.name: each.down_reason or "" for each in service.models if each.has_died}
        reason = service.failure or next(iter(dead.values()), None)
        if reason is None:
            return json_response(Health("alive"))
        return json_response(Health("down", reason, self._by_model(dead)), status=UNAVAILABLE)

    async def readyz(self, request: Request) -> Response:
        by_model = {model.name: _readiness(model) for model in self._service.models}
        ill = {name: status for name, status in by_model.items() if status != READY}
        statuses = {*ill.values(), *(["draining"] if self._service.draining else ())}
        status = next((each for each in NOT_READY if each in statuses), READY)
        health = Health(status, models=self._by_model(ill))
        return json_response(health, status=200 if status == READY else UNAVAILABLE)

    def _by_model(self, told: dict[str, str]) -> dict[str, str] | UnsetType:
        """Return what is told of models by their names, where there are several."""
        return told if told and len(self._service.models) > 1 else UNSET

    async def startupz(self, request: Request) -> Response:
        service = self._service
        restarting = next((each for each in service.models if each.is_restarting), None)
        starting = service.starting_model or restarting
        if starting is None and not service.is_down:
            return json_response(Startup("started"))
        phase, done, total = (starting or service.default_model).engine.progress
        elapsed_s = round(service.sources.clock() - service.began_s, 3)
        progress = StartProgress(phase, done, total, elapsed_s)
        status = "restarting" if restarting is not None else "starting"
        status = "down" if service.is_down else status
        return json_response(Startup(status, progress), status=UNAVAILABLE)

    async def metrics(self, request: Request) -> Response:
        for model in self._service.models:
            if model.state is ModelState.FAILED:
                model.metrics.on_down()
        as_openmetrics = takes(request.headers.get("accept", ""), OPENMETRICS)
        body = expose(self._collectors, as_openmetrics=as_openmetrics)
        headers = {"vary": "accept, accept-encoding"}
        if takes(request.headers.get("accept-encoding", ""), GZIP):
            body = await asyncio.to_thread(gzip.compress, body, LEVEL)
            headers["content-encoding"] = GZIP
        media_type = OPENMETRICS_1 if as_openmetrics else PROMETHEUS
        return Response(body, media_type=media_type, headers=headers)

    async def version(self, request: Request) -> Response:
        return json_response(Version(__version__))

    async def server_info(self, request: Request) -> Response:
        """Answer with facts and configuration, without what is secret."""
        self._service.tenants.check_admin(arrival_of(request).tenant)
        config, model = self._service.config, self._service.default_model
        infos = tuple(_model_info(each) for each in self._service.models)
        return json_response(
            ServerInfo(
                version=__version__,
                phase=model.engine.phase,
                facts=infos[0].facts,
                startup_s=infos[0].startup_s,
                memory=infos[0].memory,
                sampling_defaults=infos[0].sampling_defaults,
                config=_shown(config, "models")
                | infos[0].config
                | {"num_api_keys": len(config.api_keys)},
                models=infos,
            )
        )


def _readiness(model: ServedModel) -> str:
    """Return whether a model takes requests now: one that is not loaded does, and they wait. One
    that could not be loaded does again when the next request may try."""
    is_asked = model.config.load is LoadTime.ON_FIRST_USE and not model.has_died
    if model.state is ModelState.FAILED and not (is_asked and model.lifecycle.retry_in_s == 0):
        return "down"
    if model.is_starting:
        return "loading"
    if model.is_restarting:
        return "restarting"
    return "stuck" if model.is_stuck else READY


def _model_info(model: ServedModel) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        status=model.state,
        facts=model.facts,
        startup_s=model.startup_s,
        memory=memory_receipt(model.facts),
        sampling_defaults=model.defaults,
        config=_shown(model.config, "engine") | {"engine": model.config.engine.options()},
    )


def _shown(config: ServerConfig | ServedModelConfig, left_out: str) -> dict[str, object]:
    """Return the fields of a configuration that are not secret."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.repr and field.name != left_out
    }


def memory_receipt(facts: EngineFacts | None) -> dict[str, object] | None:
    """Return the memory receipt: bytes by line, and what KV memory holds."""
    if facts is None:
        return None
    return {
        "lines": {line.kind: line.num_bytes for line in facts.receipt},
        "block_size": facts.block_size,
        "num_blocks": facts.num_blocks,
        "num_host_blocks": facts.num_host_blocks,
        "max_model_len": facts.max_model_len,
        "max_num_batched_tokens": facts.max_num_batched_tokens,
        **msgspec.structs.asdict(facts.memory),
    }
