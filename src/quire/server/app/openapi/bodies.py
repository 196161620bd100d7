"""The schemas of request bodies, for routes that read their bodies themselves."""

from collections.abc import Mapping

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.apis.protocol.capabilities import Capability, Support, capabilities_of
from quire.server.app.apis import ALL_BODIES
from quire.server.http.endpoints import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
)

SCHEMA_PATH = "#/components/schemas/"

MAIN_PATHS = (COMPLETIONS, CHAT, RESPONSES, MESSAGES, EMBEDDINGS, RERANK, SCORE)
"""The paths whose fields docs/api.md has in one table."""
BODIES: Mapping[str, type[BaseModel]] = {path: ALL_BODIES[path][0] for path in MAIN_PATHS}


def request_schemas() -> dict[str, dict[str, object]]:
    """Return the schemas of all bodies and of what they hold, by name."""
    _, definitions = models_json_schema(
        [(model, "validation") for models in ALL_BODIES.values() for model in models],
        ref_template=SCHEMA_PATH + "{model}",
    )
    schemas: dict[str, dict[str, object]] = definitions["$defs"]
    for path, models in ALL_BODIES.items():
        for model in models:
            properties = schemas[model.__name__]["properties"]
            assert isinstance(properties, dict)
            for field, capability in capabilities_of(path, model).items():
                properties[field] = _without_effect(capability)
    return schemas


def _without_effect(capability: Capability) -> dict[str, object]:
    """Return the schema of a field that Quire does not act on: the values that are accepted."""
    if capability.support is Support.NO_EFFECT:
        return {"description": "Accepted without effect; X-Quire-Warnings names it."}
    return {
        "enum": [None, *capability.passing],
        "description": "Unsupported: only values that ask for nothing are accepted.",
    }
