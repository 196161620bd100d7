"""`/openapi.json`, and `/docs` that shows it: every route of the application with its parameters,
bodies, answers and errors.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from fastapi import FastAPI
from starlette.routing import Route

from quire.server.apis.route_doc import Parameter, ResponseDoc, RouteDoc
from quire.server.app.middleware import OPEN_PATHS
from quire.server.app.openapi.bodies import (
    ALL_BODIES,
    SCHEMA_PATH,
    body_schema,
    request_schemas,
)
from quire.server.app.openapi.errors import (
    ANYWHERE,
    SHAPES,
    error_responses,
    headers,
    response_name,
    shape_of,
)
from quire.server.app.openapi.routes import REQUEST_ID, ROUTES, route_key
from quire.server.app.openapi.served_document import ServedDocument
from quire.server.app.page.files import PAGE_FOLDER
from quire.server.errors import TOO_MANY, UNAUTHORIZED
from quire.server.http.json_responses import JSON
from quire.server.tenancy.rates import RATE_HEADERS

DESCRIPTION = """Quire serves language models over OpenAI-style APIs.

Every error has one shape, `{"error": {"message", "type", "param", "code"}}`, on the paths of
Anthropic's API `{"type": "error", "error": {"type", "message", "details"}, "request_id"}`. A path
that is not here is answered 404, another method of a path 405 with `Allow`, in that shape too;
`HEAD` is answered as `GET` is, without the body. A server that was started with API keys wants one
of them wherever a lock is shown."""
KEYS = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(app: FastAPI, model_name: str) -> None:
    """Let the application make its document when it is first asked for; `model_name` stands in the
    examples of requests. A route that the table does not have raises ValueError then."""

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, model_name)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
    for route in app.router.routes:
        if isinstance(route, Route) and route.path == app.openapi_url:
            app.router.routes.remove(route)  # it writes the document anew for each request
            app.router.routes.append(Route(route.path, ServedDocument(openapi).answer))
            break


def described_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield the method and the path of every route, as the document writes them. Left out are the
    files of the page, which are for the page alone, and a route of the page of the API for a way to
    log in that Quire has not."""
    for route in app.routes:
        if not isinstance(route, Route) or route.path.startswith(f"{PAGE_FOLDER}/"):
            continue
        if route.path != app.swagger_ui_oauth2_redirect_url:
            path = re.sub(r"{(\w+):path}", r"{\1}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield method.lower(), path


def _document(app: FastAPI, model_name: str) -> dict[str, object]:
    paths: dict[str, dict[str, object]] = {}
    for method, path in described_routes(app):
        key = route_key(method, path)
        if key not in ROUTES:
            raise ValueError(f"{path} is not described in openapi/routes.py")
        operation = _operation(path, ROUTES[key])
        operation["operationId"] = _operation_id(key)
        if path in ALL_BODIES and method == "post":
            operation["requestBody"] = _request_body(path, ROUTES[key], model_name)
        if ROUTES[key].form is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"multipart/form-data": {"schema": ROUTES[key].form}},
            }
        paths.setdefault(path, {})[method] = operation
    answer_types = sorted(set(_answer_types()), key=lambda each: each.__name__)
    of_errors = [shape.body for shape in SHAPES]
    references, answer_schemas = _schemas([*of_errors, *answer_types])
    errors: dict[str, object] = {}
    for shape, error_schema in zip(SHAPES, references, strict=False):
        errors |= error_responses(shape, error_schema)
    return {
        "openapi": app.openapi_version,
        "info": {"title": app.title, "version": app.version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": answer_schemas | request_schemas(),
            "responses": errors,
            "securitySchemes": KEYS,
        },
    }


def _answer_types() -> Iterator[type[msgspec.Struct]]:
    for route in ROUTES.values():
        for responses in route.responses.values():
            for answer in responses:
                if isinstance(answer.example, msgspec.Struct):
                    yield type(answer.example)
                yield from answer.events


def _schemas(
    types: Sequence[type[msgspec.Struct]],
) -> tuple[tuple[dict[str, object], ...], dict[str, object]]:
    """Return a reference for each type, and the schemas they lead to."""

    def anything(each: type) -> dict[str, object]:
        if each is not object:
            raise TypeError(f"no schema for {each}")
        return {"description": "Any value."}

    return msgspec.json.schema_components(
        types, schema_hook=anything, ref_template=SCHEMA_PATH + "{name}"
    )


def _operation(path: str, route: RouteDoc) -> dict[str, object]:
    is_open = path in OPEN_PATHS
    responses = {str(status): _answer(route, each) for status, each in route.responses.items()}
    errors = sorted({*ANYWHERE, *route.errors, *(() if is_open else (UNAUTHORIZED,))})
    references = {
        str(status): {"$ref": f"#/components/responses/{response_name(status, shape_of(path))}"}
        for status in errors
    }
    return {
        "summary": route.summary,
        "parameters": [_parameter(each) for each in (*route.parameters, REQUEST_ID)],
        "responses": responses | references,
        "security": [] if is_open else [{name: []} for name in KEYS],
    }


def _operation_id(key: str) -> str:
    return re.sub(r"\W+", "_", key.lower().replace("/{", "_").replace("}", "")).strip("_")


def _request_body(path: str, route: RouteDoc, model_name: str) -> dict[str, object]:
    examples = _request_examples(path, route, model_name)
    return {
        "required": route.body_required,
        "content": {JSON: {"schema": body_schema(path), "examples": examples}},
    }


def _request_examples(path: str, route: RouteDoc, model_name: str) -> dict[str, object]:
    has_model = all("model" in model.model_fields for model in ALL_BODIES[path])
    model = {"model": model_name} if has_model else {}
    return {name: {"value": {**model, **body}} for name, body in route.requests.items()}


def _answer(route: RouteDoc, responses: Sequence[ResponseDoc]) -> dict[str, object]:
    return {
        "description": " ".join(answer.description for answer in responses),
        "headers": headers(*route.headers, *(RATE_HEADERS if TOO_MANY in route.errors else ())),
        "content": {answer.media_type: _content(answer) for answer in responses},
    }


def _content(answer: ResponseDoc) -> dict[str, object]:
    example = answer.example
    if answer.events:
        return {"itemSchema": _event_schema(answer), "example": example}
    if isinstance(example, str):
        return {"schema": {"type": "string"}, "example": example}
    if isinstance(example, Mapping):
        return {"schema": {"type": "object"}, "example": example}
    schema = {"$ref": SCHEMA_PATH + type(example).__name__}
    return {"schema": schema, "example": msgspec.json.decode(msgspec.json.encode(example))}


def _event_schema(answer: ResponseDoc) -> dict[str, object]:
    """Return the schema of one server-sent event as OpenAPI 3.2 has it; FastAPI writes it in
    documents of 3.1 too."""
    body = {"anyOf": [{"$ref": SCHEMA_PATH + each.__name__} for each in answer.events]}
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": body}
    done = {"const": "[DONE]", "description": "After the last event of a generation."}
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "event": {"type": "string"},
            "data": {"anyOf": [done, data]} if answer.has_done else data,
        },
    }


def _parameter(parameter: Parameter) -> dict[str, object]:
    schema = {"type": "string"} | ({"pattern": parameter.pattern} if parameter.pattern else {})
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": schema,
        "example": parameter.example,
    }
