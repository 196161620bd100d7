"""The route of the live view."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.app.live.live_stream import LiveStream
from quire.server.generation.service import Service
from quire.server.http.query import query_of
from quire.server.models.lifecycle import ModelState
from quire.server.tenancy.tenants import arrival_of

LIVE = "/v1/live"


class LiveRoutes:
    """The handler of the stream of what a model holds and does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that this handler serves."""
        return (Route(LIVE, self.live, methods=["GET"]),)

    async def live(self, request: Request) -> Response:
        """Answer with events until the client goes. Raises RequestError where too many look on."""
        service = self._service
        model = service.model_named(query_of(request, "model").get("model"))
        service.check_open()
        if model.is_starting or model.state is ModelState.FAILED:
            model.check_is_loaded()
        watcher = model.live.join(arrival_of(request).tenant)
        return LiveStream(model, watcher, service)
