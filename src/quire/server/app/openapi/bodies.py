"""The schemas of request bodies, for routes that read their bodies themselves."""

from collections.abc import Mapping

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.batches.protocol import BatchRequest
from quire.server.apis.embeddings.protocol import EmbeddingRequest
from quire.server.apis.openai.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from quire.server.apis.prefixes.protocol import PrefixChatRequest, PrefixTextRequest
from quire.server.apis.responses.protocol import ResponsesRequest
from quire.server.apis.scoring.protocol import RerankRequest, ScoreRequest
from quire.server.app.introspection_routes import ResetRequest
from quire.server.generation.protocol.capabilities import (
    CACHE_PROBE,
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    PREFIXES,
    RERANK,
    RERANK_PATHS,
    RESPONSES,
    SCORE,
    SCORE_PATHS,
    Capability,
    Support,
    capabilities_of,
)
from quire.server.generation.protocol.chat import ChatRequest
from quire.server.generation.protocol.completions import CompletionRequest

SCHEMA_PATH = "#/components/schemas/"

BODIES: Mapping[str, type[BaseModel]] = {
    COMPLETIONS: CompletionRequest,
    CHAT: ChatRequest,
    RESPONSES: ResponsesRequest,
    MESSAGES: MessagesRequest,
    EMBEDDINGS: EmbeddingRequest,
    RERANK: RerankRequest,
    SCORE: ScoreRequest,
}
ALL_BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    **{path: (model,) for path, model in BODIES.items()},
    **{path: (RerankRequest,) for path in RERANK_PATHS},
    **{path: (ScoreRequest,) for path in SCORE_PATHS},
    f"{COMPLETIONS}/render": (CompletionRequest,),
    f"{CHAT}/render": (ChatRequest,),
    COUNT_TOKENS: (CountTokensRequest,),
    "/tokenize": (TokenizeRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
    CACHE_PROBE: (CompletionRequest, ChatRequest),
    PREFIXES: (PrefixTextRequest, PrefixChatRequest),
    "/reset_prefix_cache": (ResetRequest,),
    "/v1/batches": (BatchRequest,),
}
"""One of the models is what the body of this path must be."""


def body_schema(path: str) -> dict[str, object]:
    """Return a reference to the schema of the path's body."""
    references: list[object] = [
        {"$ref": SCHEMA_PATH + model.__name__} for model in ALL_BODIES[path]
    ]
    return (
        {"$ref": SCHEMA_PATH + ALL_BODIES[path][0].__name__}
        if len(references) == 1
        else {"anyOf": references}
    )


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
