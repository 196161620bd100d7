"""Routes that show a client its own requests and the events of the prefix cache."""

from collections import Counter

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import (
    ALL_KEYS,
    MODEL_QUERY,
    READS_A_BODY,
    event_content,
    json_body,
    parameter,
    responses,
)
from quire.server.apis.openai.examples import COMPLETION
from quire.server.apis.protocol.fields import StrictModel
from quire.server.apis.protocol.parse import validate
from quire.server.apis.routing import BareRoute, service_of
from quire.server.app import examples
from quire.server.app.kv_event_stream import KVEventStream, last_event_id
from quire.server.app.wire import Cancelled, Loads, ModelLoads, ResetSent
from quire.server.errors import NOT_FOUND, UNAVAILABLE, RequestError
from quire.server.http.json_object import parse_object
from quire.server.http.json_responses import json_response
from quire.server.http.query import flag_of, query_of
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.observability.kv_event_feed import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Gap,
)
from quire.server.observability.timeline_view import TimelineList, show, summary
from quire.server.observability.timelines import Timeline
from quire.server.tenancy.tenants import arrival_of

MAX_SHOWN_CHARS = 128
MAX_RESET_BYTES = 1024
"""More than any body that asks for a reset."""


class ResetRequest(StrictModel):
    """The body of `/reset_prefix_cache`, which may be left out. Without `model` it is for all."""

    model: str | None = None


_REQUEST = "/v1/requests/{name:path}"
_NAME = parameter("name", "path", "The answer's id or its x-request-id.", "my-request-1")
_LAST_EVENT = parameter(
    "last-event-id",
    "header",
    "The last event that the client has; the answer goes on after it.",
    "1",
    r"^[0-9]{1,18}$",
)

router = APIRouter(tags=["Introspection"], route_class=BareRoute)


@router.get(
    "/v1/requests",
    summary="One's own requests that run or ran last, the newest first.",
    responses=responses(TimelineList((examples.SUMMARY,))),
    openapi_extra={"parameters": [ALL_KEYS]},
)
async def timelines(request: Request) -> Response:
    service, tenant = service_of(request), arrival_of(request).tenant
    wants_all = flag_of(query_of(request, "all"), "all")
    if wants_all:
        service.tenants.check_sees_all(tenant)
    now = service.sources.clock()
    listed = service.timelines.of(None if wants_all else tenant.name)
    names_tenant = wants_all and service.tenants.are_apart
    return json_response(
        TimelineList(tuple(summary(each, now, names_tenant=names_tenant) for each in listed))
    )


@router.post(
    f"{_REQUEST}/cancel",
    summary="End a request of one's own; its answer has what there is, and ends with `abort`.",
    responses=responses(Cancelled(COMPLETION.id, "cancelling"), errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME]},
)
async def cancel(request: Request) -> Response:
    timeline = _own(request)
    model = service_of(request).find_model(timeline.model)
    for choice in timeline.choices:
        if model is not None:
            model.engine.abort(choice.request_id)
    state = "cancelling" if timeline.ended_s is None else "ended"
    return json_response(Cancelled(timeline.id, state))


@router.get(
    _REQUEST,
    summary="What happened to a request of one's own, while it runs and after.",
    responses=responses(examples.TIMELINE, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_NAME]},
)
async def timeline(request: Request) -> Response:
    service = service_of(request)
    now, target_itl_ms = service.sources.clock(), service.timelines.target_itl_ms
    return json_response(show(_own(request), now, target_itl_ms))


def _own(request: Request) -> Timeline:
    """Return the client's own request that the path names, of an administrator anyone's. Raises
    RequestError."""
    service = service_of(request)
    name, tenant = str(request.path_params["name"]), arrival_of(request).tenant
    owners = service.tenants.all_names if tenant.is_admin else ()
    for owner in (tenant.name, *owners):
        timeline = service.timelines.find(owner, name)
        if timeline is not None:
            return timeline
    most = service.config.timeline_requests
    kept = f"the last {most} are kept" if most else "--timeline-requests 0 keeps none"
    raise RequestError(
        f"No request {name[:MAX_SHOWN_CHARS]!r} of yours is known; {kept}.",
        code="request_not_found",
        status=NOT_FOUND,
    )


@router.get(
    "/v1/loads",
    summary="The load of the engine, for balancers.",
    responses=responses(examples.LOADS, errors=(UNAVAILABLE,)),
)
async def loads(request: Request) -> Response:
    service = service_of(request)
    service.check_open()
    if all(model.is_starting or model.state is ModelState.FAILED for model in service.models):
        service.default_model.check_is_loaded()
    of_models = tuple(map(_loads, service.models))
    blocks: Counter[str] = Counter()
    for each in of_models:
        blocks.update(each.blocks)
    return json_response(
        Loads(
            sum(each.num_running for each in of_models),
            sum(each.num_waiting for each in of_models),
            sum(each.max_num_seqs for each in of_models),
            sum(each.max_num_queued_reqs for each in of_models),
            max(each.kv_cache_usage for each in of_models),
            blocks,
            max(each.predicted_wait_s for each in of_models),
            of_models,
        )
    )


@router.get(
    "/v1/kv_events",
    summary="The events of the prefix cache, where `--enable-kv-cache-events` is set; for the "
    "admin key, where there is one.",
    responses=responses(
        event_content(
            examples.KV_EVENTS, BlockStored, BlockRemoved, AllBlocksCleared, Gap, has_done=True
        ),
        description="Events without an end.",
        errors=(NOT_FOUND, UNAVAILABLE),
    ),
    openapi_extra={"parameters": [MODEL_QUERY, _LAST_EVENT]},
)
async def kv_events(request: Request) -> Response:
    service = service_of(request)
    service.tenants.check_admin(arrival_of(request).tenant)
    model = service.model_named(query_of(request, "model").get("model"))
    if not model.config.engine.tracing.enable_kv_cache_events:
        raise RequestError(
            f"{model.name} is served without --enable-kv-cache-events.",
            code="kv_events_off",
            status=NOT_FOUND,
        )
    service.check_open()
    if model.is_starting or model.state is ModelState.FAILED:
        model.check_is_loaded()
    return KVEventStream(model.kv_events, service, last_event_id(request))


@router.post(
    "/reset_prefix_cache",
    summary="Empty the prefix cache of a model, or of all; for the admin key, where there is one.",
    responses=responses(ResetSent(), errors=(*READS_A_BODY, NOT_FOUND)),
    openapi_extra=json_body(ResetRequest, examples={"all": {}}, required=False),
)
async def reset_prefix_cache(request: Request) -> Response:
    service = service_of(request)
    service.tenants.check_admin(arrival_of(request).tenant)
    body = await service.bodies.read(request, MAX_RESET_BYTES)
    service.check_open()
    asked = validate(parse_object(body), ResetRequest) if body else ResetRequest()
    models = service.models if asked.model is None else (service.model_named(asked.model),)
    if all(model.is_starting or model.state is ModelState.FAILED for model in models):
        models[0].check_is_loaded()
    for model in models:
        if model.state is ModelState.LOADED:  # one that is not loaded has no cache
            model.reset_prefix_cache()
    return json_response(ResetSent())


def _loads(model: ServedModel) -> ModelLoads:
    stats, scheduling = model.metrics.stats, model.config.engine.scheduling
    num_engines = model.config.engine.parallel.data_parallel_size
    return ModelLoads(
        model.name,
        model.state,
        stats.num_running,
        stats.num_waiting,
        model.lifecycle.num_waiting,
        scheduling.max_num_seqs * num_engines,
        scheduling.max_num_queued_reqs * num_engines,
        stats.kv_usage,
        stats.blocks_by_state,
        stats.predicted_wait_s,
    )
