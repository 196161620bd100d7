"""An API of the server, as its folder hands it to the application."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from pydantic import BaseModel
from starlette.routing import Route

from quire.server.apis.route_doc import RouteDoc
from quire.server.generation.service import Service


class Handlers(Protocol):
    """Handlers of requests."""

    def routes(self) -> Iterable[Route]:
        """Return the routes that they serve."""
        ...


class Api(NamedTuple):
    """An API: its handlers on a service, the models of its bodies by path, one of which a body must
    be, and the descriptions of its routes. A path of several methods has a row for each, which
    begins with the method, as `POST /v1/files`."""

    handlers: Callable[[Service], Handlers]
    bodies: Mapping[str, tuple[type[BaseModel], ...]]
    docs: Mapping[str, RouteDoc]
