"""Routes that show a client its own requests and the events of the prefix cache."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.errors import NOT_FOUND, RequestError
from quire.server.http.json_responses import json_response
from quire.server.http.query import flag_of, query_of
from quire.server.observability.kv_event_stream import KVEventStream, last_event_id
from quire.server.observability.timeline_view import TimelineList, show, summary
from quire.server.observability.timelines import Timeline
from quire.server.openai.protocol.fields import StrictModel
from quire.server.openai.protocol.parse import parse_object, validate
from quire.server.openai.protocol.wire import Cancelled, Loads, ResetSent
from quire.server.service import Service
from quire.server.tenancy.tenants import arrival_of

MAX_SHOWN_CHARS = 128
MAX_RESET_BYTES = 1024
"""More than any body that asks for a reset."""


class ResetRequest(StrictModel):
    """The body of `/reset_prefix_cache`, which may be left out."""


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
        serving = service.serving_state()
        model, facts = serving.model, serving.facts
        stats = model.metrics.stats
        return json_response(
            Loads(
                stats.num_running,
                stats.num_waiting,
                facts.max_num_seqs,
                model.config.engine.scheduling.max_num_queued_reqs,
                stats.kv_usage,
                stats.blocks_by_state,
                stats.predicted_wait_s,
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
        model = self._service.default_model
        if not model.config.engine.tracing.enable_kv_cache_events:
            raise RequestError(
                "This server was started without --enable-kv-cache-events.",
                code="kv_events_off",
                status=NOT_FOUND,
            )
        self._service.serving_state()  # raises where no request can be taken
        return KVEventStream(model.kv_events, self._service, last_event_id(request))

    async def reset_prefix_cache(self, request: Request) -> Response:
        service = self._service
        service.tenants.check_admin(arrival_of(request).tenant)
        body = await service.bodies.read(request, MAX_RESET_BYTES)
        model = service.serving_state().model
        if body:
            validate(parse_object(body), ResetRequest)
        model.engine.reset_prefix_cache()
        return json_response(ResetSent())
