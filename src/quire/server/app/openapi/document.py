"""`/openapi.json`, and `/docs` that shows it: FastAPI's document of the routes, with what all of
them share.
"""

import copy
import re
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import Route

from quire.server.apis.descriptions import Node, parameter, responses, text_content, types_in
from quire.server.apis.routing import BareRoute
from quire.server.app.apis import bodies_of
from quire.server.app.middleware import OPEN_PATHS
from quire.server.app.openapi.bodies import SCHEMA_PATH, request_schemas
from quire.server.app.openapi.errors import (
    ANYWHERE,
    SHAPES,
    error_responses,
    response_name,
    shape_of,
)
from quire.server.app.openapi.served_document import ServedDocument
from quire.server.errors import UNAUTHORIZED
from quire.server.http.json_responses import JSON

DOCS_PATH, DOCUMENT_PATH = "/docs", "/openapi.json"
DESCRIPTION = """Quire serves language models over OpenAI-style APIs.

Every error has one shape, `{"error": {"message", "type", "param", "code"}}`, on the paths of
Anthropic's API `{"type": "error", "error": {"type", "message", "details"}, "request_id"}`. A path
that is not here is answered 404, another method of a path 405 with `Allow`, a WebSocket's handshake
there 426, in that shape too; `HEAD` is answered as `GET` is, without the body. A server that was
started with API keys wants one of them wherever a lock is shown."""
KEYS = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
REQUEST_ID = parameter(
    "x-request-id", "header", "The id of the request, if the client gives it one.", "my-request-1"
)
"""Every route takes it."""


def describe(app: FastAPI, model_name: str) -> None:
    """Let the application make its document when it is first asked for; `model_name` stands in the
    examples of requests."""

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, model_name)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
    by_path = {each.path: each for each in app.router.routes if isinstance(each, Route)}
    document, page = by_path[DOCUMENT_PATH], by_path[DOCS_PATH]
    app.router.routes.remove(document)  # FastAPI's own writes it anew for each request
    app.router.routes.remove(page)
    router = APIRouter(tags=["Server"], route_class=BareRoute)
    router.get(
        DOCUMENT_PATH,
        summary="This document.",
        responses=responses(
            {JSON: {"schema": {"type": "object"}, "example": {"openapi": app.openapi_version}}}
        ),
    )(ServedDocument(openapi).answer)
    router.get(
        DOCS_PATH,
        summary="This document as a page.",
        responses=responses(text_content("<!DOCTYPE html>", "text/html")),
    )(page.endpoint)
    app.router.routes += router.routes


def described_routes(app: FastAPI) -> Sequence[BareRoute]:
    """Return the routes that the document has, without `HEAD`, which it tells once for all."""
    found = [each for each in app.routes if isinstance(each, BareRoute) and each.include_in_schema]
    shown = [copy.copy(each) for each in found]
    for route in shown:
        route.methods = route.methods - {"HEAD"}
    return shown


def _document(app: FastAPI, model_name: str) -> dict[str, object]:
    routes = described_routes(app)
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        description=DESCRIPTION,
        routes=routes,
    )
    for route in routes:
        path = document["paths"][route.path_format]
        for method in route.methods:
            operation = path[method.lower()]
            operation["operationId"] = _operation_id(method, route, has_several=len(path) > 1)
            _complete(operation, route, model_name)
    document["components"] = _components(routes)
    return document


def _complete(operation: Node, route: BareRoute, model_name: str) -> None:
    """Add to an operation what all have, and the nulls of examples, which FastAPI leaves out."""
    is_open = route.path in OPEN_PATHS
    extra = copy.deepcopy(route.openapi_extra or {})
    models = bodies_of(route)
    if models and all("model" in each.model_fields for each in models):
        for example in extra["requestBody"]["content"][JSON]["examples"].values():
            example["value"] = {"model": model_name, **example["value"]}
    operation |= extra
    operation["parameters"] = [*extra.get("parameters", ()), REQUEST_ID]
    own_errors = [status for status, described in route.responses.items() if not described]
    shape = shape_of(route.path)
    operation["responses"] = {
        **{str(status): answer for status, answer in route.responses.items() if answer},
        **{
            str(status): {"$ref": f"#/components/responses/{response_name(int(status), shape)}"}
            for status in (*ANYWHERE, *own_errors, *(() if is_open else (UNAUTHORIZED,)))
        },
    }
    operation["security"] = [] if is_open else [{name: []} for name in KEYS]


def _operation_id(method: str, route: BareRoute, *, has_several: bool) -> str:
    """Return an id made of the path, and of the method where a path has several."""
    path = route.path_format.lower().replace("/{", "_").replace("}", "")
    key = f"{method.lower()} {path}" if has_several or path == "/" else path
    return re.sub(r"\W+", "_", key).strip("_")


def _components(routes: Sequence[BareRoute]) -> Node:
    """Return the schemas, each of them once, and the errors that routes refer to."""
    described = [each for route in routes for each in types_in([*route.responses.values()])]
    answers = {each.__name__: each for each in described if issubclass(each, msgspec.Struct)}
    types = [shape.body for shape in SHAPES] + [answers[name] for name in sorted(answers)]
    references, schemas = msgspec.json.schema_components(
        types, schema_hook=_any_value, ref_template=SCHEMA_PATH + "{name}"
    )
    errors: Node = {}
    for shape, error_schema in zip(SHAPES, references, strict=False):
        errors |= error_responses(shape, error_schema)
    return {"schemas": schemas | request_schemas(), "responses": errors, "securitySchemes": KEYS}


def _any_value(of: type) -> Node:
    if of is not object:
        raise TypeError(f"no schema for {of}")
    return {"description": "Any value."}
