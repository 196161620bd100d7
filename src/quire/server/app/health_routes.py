"""Routes that tell whether the server is alive, ready and started, and what it serves with. They
answer from the first moment on.
"""

import asyncio
import dataclasses
import gzip

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from prometheus_client import PROCESS_COLLECTOR
from starlette.requests import Request
from starlette.responses import Response

from quire.engine.messages import EngineFacts
from quire.server.apis.descriptions import OK, Responses, response, responses, text_content
from quire.server.apis.routing import BareRoute, service_of, state_of
from quire.server.app import examples
from quire.server.app.exposition import EngineProcesses, MetricsCollector, expose
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

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
PROMETHEUS = f"{TEXT}; version=0.0.4; charset=utf-8"
OPENMETRICS_1 = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
READY = "ready"
NOT_READY = ("down", "draining", "loading", "restarting", "stuck")
"""The states of a server that takes no requests, or not all: the first that holds is told."""

router = APIRouter(tags=["Server"], route_class=BareRoute)


class Collectors:
    """The collectors of the server's metrics."""

    def __init__(self, service: Service) -> None:
        self.all = (
            MetricsCollector(service),
            service.metrics.http,
            PROCESS_COLLECTOR,
            EngineProcesses(service),
        )


def _health(well: str, *ill: str) -> Responses:
    described = f"`status` is one of: {', '.join(ill)}."
    return {
        OK: response(Health(well), description="All is well."),
        UNAVAILABLE: response(Health(ill[0]), description=described),
    }


@router.get(
    "/livez",
    summary="Is the server alive, or should it be started again?",
    responses=_health("alive", "down"),
)
async def livez(request: Request) -> Response:
    # A restart is asked for where no model could be loaded, or the engine of any has ended.
    service = service_of(request)
    dead = {each.name: each.down_reason or "" for each in service.models if each.has_died}
    reason = service.failure or next(iter(dead.values()), None)
    if reason is None:
        return json_response(Health("alive"))
    return json_response(Health("down", reason, _by_model(service, dead)), status=UNAVAILABLE)


async def readyz(request: Request) -> Response:
    service = service_of(request)
    by_model = {model.name: _readiness(model) for model in service.models}
    ill = {name: status for name, status in by_model.items() if status != READY}
    statuses = {*ill.values(), *(["draining"] if service.draining else ())}
    status = next((each for each in NOT_READY if each in statuses), READY)
    health = Health(status, models=_by_model(service, ill))
    return json_response(health, status=OK if status == READY else UNAVAILABLE)


for path in ("/readyz", "/health", "/ping"):
    router.add_api_route(
        path,
        readyz,
        methods=["GET"],
        summary="Should this server get requests?",
        responses=_health(READY, "loading", "draining", "restarting", "stuck", "down"),
    )


def _by_model(service: Service, told: dict[str, str]) -> dict[str, str] | UnsetType:
    """Return what is told of models by their names, where there are several."""
    return told if told and len(service.models) > 1 else UNSET


@router.get(
    "/startupz",
    summary="Has the server started, or how far has it come?",
    responses={
        OK: response(Startup("started"), description="It has."),
        UNAVAILABLE: response(
            Startup("starting", StartProgress("weights", 1, 2, 1.5)),
            description="`status` is starting or down.",
        ),
    },
)
async def startupz(request: Request) -> Response:
    service = service_of(request)
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


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format, or in OpenMetrics where `Accept` names it.",
    responses=responses(
        text_content(examples.METRICS_TEXT, TEXT),
        text_content(f"{examples.METRICS_TEXT}# EOF\n", OPENMETRICS),
    ),
)
async def metrics(request: Request) -> Response:
    for model in service_of(request).models:
        if model.state is ModelState.FAILED:
            model.metrics.on_down()
    as_openmetrics = takes(request.headers.get("accept", ""), OPENMETRICS)
    body = expose(state_of(request, Collectors).all, as_openmetrics=as_openmetrics)
    headers = {"vary": "accept, accept-encoding"}
    if takes(request.headers.get("accept-encoding", ""), GZIP):
        body = await asyncio.to_thread(gzip.compress, body, LEVEL)
        headers["content-encoding"] = GZIP
    media_type = OPENMETRICS_1 if as_openmetrics else PROMETHEUS
    return Response(body, media_type=media_type, headers=headers)


@router.get(
    "/version", summary="The version of the server.", responses=responses(Version(__version__))
)
async def version(request: Request) -> Response:
    return json_response(Version(__version__))


@router.get(
    "/v1/server_info",
    summary="Facts of the model and the engine, and the configuration without what is secret; for "
    "the admin key, where there is one.",
    responses=responses(examples.SERVER_INFO),
)
async def server_info(request: Request) -> Response:
    service = service_of(request)
    service.tenants.check_admin(arrival_of(request).tenant)
    config = service.config
    infos = tuple(_model_info(each) for each in service.models)
    return json_response(
        ServerInfo(
            version=__version__,
            phase=service.default_model.engine.phase,
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
        "num_states": facts.num_states,
        "num_host_states": facts.num_host_states,
        "max_model_len": facts.max_model_len,
        "max_num_batched_tokens": facts.max_num_batched_tokens,
        **msgspec.structs.asdict(facts.memory),
    }
