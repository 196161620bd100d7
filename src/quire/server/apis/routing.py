"""Routes of FastAPI whose handlers read requests and write responses themselves."""

from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from quire.server.generation.service import Service

Handler = Callable[[Request], Coroutine[object, object, Response]]


class BareRoute(APIRoute):
    """A route whose handler is called with the bare request: bodies are read bounded and off the
    event loop, and keys are checked in the middleware. FastAPI describes it and does no more. A
    route raises TypeError if it is not described, or has dependencies, which nothing would solve.
    """

    __slots__ = ("path_regex",)  # what each request reads of each route: FastAPI's dict is slow
    methods: set[str]
    matches = Route.matches
    handle = Route.handle

    def __init__(self, path: str, endpoint: Handler, **options: object) -> None:
        super().__init__(path, endpoint, **options)  # type: ignore[arg-type]  # FastAPI's own
        if self.dependencies or self.body_field is not None:
            raise TypeError(f"{path}: a bare route takes a request, and no dependencies")
        if self.include_in_schema and not self.responses:
            raise TypeError(f"{path} is not described")
        self.app = request_response(endpoint)
        if "GET" in self.methods:
            self.methods.add("HEAD")

    def get_route_handler(self) -> Handler:
        return self.endpoint


class AppState(Protocol):
    """The state that an API keeps as long as the application lives."""

    def __init__(self, service: Service) -> None: ...


Kind = TypeVar("Kind", bound=AppState)


def share(app: Starlette, service: Service, *states: AppState) -> None:
    """Let the handlers of the application find the service, and states that are built by now."""
    app.state.service = service
    app.state.of_apis = {type(each): each for each in states}


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def state_of(request: Request, kind: type[Kind]) -> Kind:
    """Return the application's state of this kind, which is built at the first request for it."""
    states: dict[type[object], object] = request.app.state.of_apis
    state = states.get(kind)
    if state is None:
        state = states[kind] = kind(service_of(request))
    assert isinstance(state, kind)
    return state
