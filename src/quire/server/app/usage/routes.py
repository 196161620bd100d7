"""The route that tells what API keys have used."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.descriptions import MODEL_QUERY, parameter, responses
from quire.server.apis.routing import BareRoute, service_of
from quire.server.app.usage.examples import REPORT
from quire.server.app.usage.report import build_report, shown_name
from quire.server.errors import NOT_FOUND, RequestError
from quire.server.http.endpoints import USAGE
from quire.server.http.json_responses import json_response
from quire.server.http.query import query_of
from quire.server.tenancy.tenants import AdminKeyRequired, Tenant, Tenants, arrival_of

MAX_SHOWN_CHARS = 64


_KEY = parameter("key", "query", "The name of one key, of several.", "team-a")

router = APIRouter(tags=["Introspection"], route_class=BareRoute)


@router.get(
    USAGE,
    summary="The usage of one's own key since the server began; for the admin key, of all keys.",
    responses=responses(REPORT, errors=(NOT_FOUND,)),
    openapi_extra={"parameters": [_KEY, MODEL_QUERY]},
)
async def usage(request: Request) -> Response:
    service, query = service_of(request), query_of(request, "key", "model")
    tenants = _shown_tenants(service.tenants, arrival_of(request).tenant, query.get("key"))
    named = query.get("model")
    models = service.models if named is None else (service.model_named(named),)
    return json_response(build_report(service, tenants, models))


def _shown_tenants(tenants: Tenants, tenant: Tenant, key: str | None) -> Sequence[str]:
    """Return whose accounts are shown, to a tenant that asks for those of `key`, or of all that
    it may see: a key sees its own account, the admin key those of all. Raises RequestError."""
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
