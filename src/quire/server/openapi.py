"""`/docs`: the request models as schemas, for routes that read their bodies themselves."""

from collections.abc import Mapping

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.protocol.capabilities import CHAT, COMPLETIONS
from quire.server.protocol.chat import ChatRequest
from quire.server.protocol.completions import CompletionRequest

BODIES: Mapping[str, type[BaseModel]] = {COMPLETIONS: CompletionRequest, CHAT: ChatRequest}


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
        [(model, "validation") for model in BODIES.values()],
        ref_template="#/components/schemas/{model}",
    )
    paths = {
        path: {
            "post": {
                "summary": path,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": keys[(model, "validation")]}},
                },
                "responses": {"200": {"description": "The answer, or a stream of its parts"}},
            }
        }
        for path, model in BODIES.items()
    }
    return {"paths": paths, "components": {"schemas": definitions["$defs"]}}
