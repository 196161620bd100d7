"""The routers of the server: a new API is a folder of `apis` and a line here."""

from collections.abc import Iterator, Mapping

from fastapi import APIRouter
from pydantic import BaseModel

from quire.server.apis.anthropic.routes import router as anthropic
from quire.server.apis.batches.routes import router as batches
from quire.server.apis.descriptions import types_in
from quire.server.apis.embeddings.routes import router as embeddings
from quire.server.apis.openai.routes import router as openai
from quire.server.apis.prefixes.routes import router as prefixes
from quire.server.apis.responses.routes import router as responses
from quire.server.apis.responses.stored_routes import router as stored_responses
from quire.server.apis.routing import BareRoute
from quire.server.apis.scoring.routes import router as scoring
from quire.server.app.cache_routes import router as cache
from quire.server.app.health_routes import router as health
from quire.server.app.introspection_routes import router as introspection
from quire.server.app.live.routes import router as live
from quire.server.app.models.routes import router as models
from quire.server.app.page.routes import router as page
from quire.server.app.usage.routes import router as usage

APIS: tuple[APIRouter, ...] = (
    openai,
    responses,
    stored_responses,
    anthropic,
    embeddings,
    scoring,
    prefixes,
    batches,
)
ROUTERS = (health, *APIS, introspection, live, models, cache, usage)
"""The routers of every application, in the order in which a path is looked for: the most frequent
ones are near the beginning. `page` comes last, where a server has one."""


def bare_routes(*routers: APIRouter) -> Iterator[BareRoute]:
    """Yield the routes of routers."""
    for router in routers:
        for route in router.routes:
            assert isinstance(route, BareRoute)
            yield route


def bodies_of(route: BareRoute) -> tuple[type[BaseModel], ...]:
    """Return the models, one of which the body of a route must be."""
    return tuple(each for each in types_in(route.openapi_extra) if issubclass(each, BaseModel))


ALL_BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    route.path: bodies_of(route) for route in bare_routes(*ROUTERS) if bodies_of(route)
}
"""The models of the bodies of each path that takes JSON."""
ROUTE_PATHS = frozenset(
    route.path_format for route in bare_routes(*ROUTERS, page) if route.include_in_schema
)
"""The paths of all routes, but for those of the document."""
