"""Routes that show a client its own requests and the events of the prefix cache."""

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.apis.protocol.fields import StrictModel
from quire.server.apis.protocol.parse import validate
from quire.server.app.kv_event_stream import KVEventStream, last_event_id
from quire.server.app.wire import Cancelled, Loads, ModelLoads, ResetSent
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.generation.service import Service
from quire.server.http.json_object import parse_object
from quire.server.http.json_responses import json_response
from quire.server.http.query import flag_of, query_of
from quire.server.models.lifecycle import ModelState
from quire.server.models.served_model import ServedModel
from quire.server.observability.timeline_view import TimelineList, show, summary
from quire.server.observability.timelines import Timeline
from quire.server.tenancy.tenants import arrival_of

MAX_SHOWN_CHARS = 128
MAX_RESET_BYTES = 1024
"""More than any body that asks for a reset."""


class ResetRequest(StrictModel):
    """The body of `/reset_prefix_cache`, which may be left out. Without `model` it is for all."""

    model: str | None = None


class IntrospectionRoutes:
    """Handlers of timelines, of the load, of the cache's events, and of its reset."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that these handlers serve."""
        return (
            Route("/v1/requests", self.timelines, methods=["GET"]),
            Route("/v1/requests/{name:path}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/requests/{name:path}", self.timeline, methods=["GET"]),
            Route("/v1/loads", self.loads, methods=["GET"]),
            Route("/v1/kv_events", self.kv_events, methods=["GET"]),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
        )

    async def timelines(self, request: Request) -> Response:
        """Answer with the client's own requests, or those of all, the newest first."""
        service, tenant = self._service, arrival_of(request).tenant
        wants_all = flag_of(query_of(request, "all"), "all")
        if wants_all:
            service.tenants.check_sees_all(tenant)
        now = service.sources.clock()
        listed = service.timelines.of(None if wants_all else tenant.name)
        names_tenant = wants_all and service.tenants.are_apart
        return json_response(
            TimelineList(tuple(summary(each, now, names_tenant=names_tenant) for each in listed))
        )

    async def loads(self, request: Request) -> Response:
        service = self._service
        service.check_open()
        if all(model.is_starting or model.state is ModelState.FAILED for model in service.models):
            service.default_model.check_is_loaded()
        loads = tuple(map(_loads, service.models))
        blocks: Counter[str] = Counter()
        for each in loads:
            blocks.update(each.blocks)
        return json_response(
            Loads(
                sum(each.num_running for each in loads),
                sum(each.num_waiting for each in loads),
                sum(each.max_num_seqs for each in loads),
                sum(each.max_num_queued_reqs for each in loads),
                max(each.kv_cache_usage for each in loads),
                blocks,
                max(each.predicted_wait_s for each in loads),
                loads,
            )
        )

    async def timeline(self, request: Request) -> Response:
        return json_response(show(self._own(request), self._service.sources.clock()))

    async def cancel(self, request: Request) -> Response:
        """End a request; its client gets what there is, with the `finish_reason` "abort"."""
        timeline = self._own(request)
        model = self._service.find_model(timeline.model)
        for choice in timeline.choices:
            if model is not None:
                model.engine.abort(choice.request_id)
        state = "cancelling" if timeline.ended_s is None else "ended"
        return json_response(Cancelled(timeline.id, state))

    def _own(self, request: Request) -> Timeline:
        """Return the client's own request that the path names, of an administrator anyone's. Raises
        RequestError."""
        name, tenant = str(request.path_params["name"]), arrival_of(request).tenant
        owners = self._service.tenants.all_names if tenant.is_admin else ()
        for owner in (tenant.name, *owners):
            timeline = self._service.timelines.find(owner, name)
            if timeline is not None:
                return timeline
        most = self._service.config.timeline_requests
        kept = f"the last {most} are kept" if most else "--timeline-requests 0 keeps none"
        raise RequestError(
            f"No request {name[:MAX_SHOWN_CHARS]!r} of yours is known; {kept}.",
            code="request_not_found",
            status=NOT_FOUND,
        )

    async def kv_events(self, request: Request) -> Response:
        self._service.tenants.check_admin(arrival_of(request).tenant)
        service = self._service
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

    async def reset_prefix_cache(self, request: Request) -> Response:
        """Empty the prefix cache of one model, or of all; one that is not loaded has none."""
        service = self._service
        service.tenants.check_admin(arrival_of(request).tenant)
        body = await service.bodies.read(request, MAX_RESET_BYTES)
        service.check_open()
        asked = validate(parse_object(body), ResetRequest) if body else ResetRequest()
        models = service.models if asked.model is None else (service.model_named(asked.model),)
        if all(model.is_starting or model.state is ModelState.FAILED for model in models):
            models[0].check_is_loaded()
        for model in models:
            if model.state is ModelState.LOADED:
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
