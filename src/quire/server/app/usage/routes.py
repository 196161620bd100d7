"""The route that tells what API keys have used."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.server.app.usage.report import build_report, shown_name
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.generation.service import Service
from quire.server.http.endpoints import USAGE
from quire.server.http.json_responses import json_response
from quire.server.http.query import query_of
from quire.server.tenancy.tenants import AdminKeyRequired, Tenant, arrival_of

MAX_SHOWN_CHARS = 64


class UsageRoutes:
    """Handler of what keys have used. A key sees its own account, the admin key those of all."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the application that this handler serves."""
        return (Route(USAGE, self.usage, methods=["GET"]),)

    async def usage(self, request: Request) -> Response:
        service, query = self._service, query_of(request, "key", "model")
        tenants = self._tenants(arrival_of(request).tenant, query.get("key"))
        named = query.get("model")
        models = service.models if named is None else (service.model_named(named),)
        return json_response(build_report(service, tenants, models))

    def _tenants(self, tenant: Tenant, key: str | None) -> Sequence[str]:
        """Return whose accounts are shown, to a tenant that asks for those of `key`, or of all that
        it may see. Raises RequestError."""
        tenants = self._service.tenants
        sees_all = tenant.is_admin or not tenants.are_apart
        seen = tenants.all_names if sees_all else (tenant.name,)
        if key is None:
            return seen
        found = [name for name in seen if shown_name(name) == key]
        if found:
            return found
        if not sees_all:
            raise AdminKeyRequired(
                "The usage of other keys is shown to the admin key of a server (--admin-key) "
                "alone; without 'key' your own is shown."
            )
        raise RequestError(
            f"No key has the name {key[:MAX_SHOWN_CHARS]!r}.",
            param="key",
            code="key_not_found",
            status=NOT_FOUND,
        )
