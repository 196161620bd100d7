"""The route of the live view."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import MODEL_QUERY, event_content, responses
from quire.server.apis.routing import BareRoute, service_of
from quire.server.app.live.examples import LIVE_EVENTS
from quire.server.app.live.live_stream import LiveStream
from quire.server.errors import NOT_FOUND, TOO_MANY, UNAVAILABLE
from quire.server.http.query import query_of
from quire.server.models.lifecycle import ModelState
from quire.server.observability.live.wire import LiveChanges, LiveEngine, LivePicture
from quire.server.tenancy.tenants import arrival_of

router = APIRouter(tags=["Introspection"], route_class=BareRoute)


@router.get(
    "/v1/live",
    summary="What every block of a model holds and how far its requests are, a few times a second: "
    "a whole picture, then what changes. Of other keys' requests only that some hold a block, "
    "unless with the admin key.",
    responses=responses(
        event_content(LIVE_EVENTS, LiveEngine, LivePicture, LiveChanges),
        description="Events without an end.",
        errors=(NOT_FOUND, TOO_MANY, UNAVAILABLE),
    ),
    openapi_extra={"parameters": [MODEL_QUERY]},
)
async def live(request: Request) -> Response:
    service = service_of(request)
    model = service.model_named(query_of(request, "model").get("model"))
    service.check_open()
    if model.is_starting or model.state is ModelState.FAILED:
        model.check_is_loaded()
    watcher = model.live.join(arrival_of(request).tenant)
    return LiveStream(model, watcher, service)
