"""`/docs`: the request models as schemas, for routes that read their bodies themselves."""

from collections.abc import Mapping, Sequence

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.protocol.capabilities import CHAT, COMPLETIONS
from quire.server.protocol.chat import ChatRequest
from quire.server.protocol.completions import CompletionRequest
from quire.server.protocol.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeRequest

BODIES: Mapping[str, type[BaseModel]] = {COMPLETIONS: CompletionRequest, CHAT: ChatRequest}
ALL_BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    **{path: (model,) for path, model in BODIES.items()},
    "/tokenize": (TokenizeRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
}


def describe(app: FastAPI) -> None:
    """Add the bodies to the application's OpenAPI page, once it is asked for."""
    plain = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            app.openapi_schema = {**plain(), **_bodies()}
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _bodies() -> dict[str, object]:
    keys, definitions = models_json_schema(
        [(model, "validation") for models in ALL_BODIES.values() for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {
        path: [keys[(model, "validation")] for model in models]
        for path, models in ALL_BODIES.items()
    }
    paths = {path: {"post": _post(path, each)} for path, each in schemas.items()}
    return {"paths": paths, "components": {"schemas": definitions["$defs"]}}


def _post(path: str, schemas: Sequence[Mapping[str, object]]) -> dict[str, object]:
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {
        "summary": path,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer, perhaps as a stream"}},
    }
