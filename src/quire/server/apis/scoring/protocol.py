"""`POST /v1/rerank`, as Cohere and Jina have it, and `POST /v1/score`, as vLLM has it."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BeforeValidator, Field, WithJsonSchema

from quire.server.apis.protocol.fields import (
    INT64_MAX,
    MAX_PRIORITY,
    Positive,
    StrictModel,
    at_most,
)

MAX_PAIRS = 1024
Text: TypeAlias = Annotated[str, Field(min_length=1)]


class TextDocument(StrictModel):
    """A document as an object."""

    text: Text


Documents: TypeAlias = Annotated[
    list[Text | TextDocument],
    Field(min_length=1, max_length=MAX_PAIRS, fail_fast=True),
    at_most(MAX_PAIRS),
]


def _one_or_many(given: object) -> object:
    return [given] if isinstance(given, str) else given


_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_TEXTS_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1, "maxItems": MAX_PAIRS},
    ]
}
Texts: TypeAlias = Annotated[
    list[Text],
    Field(min_length=1, max_length=MAX_PAIRS, fail_fast=True),
    at_most(MAX_PAIRS),
    BeforeValidator(_one_or_many),
    WithJsonSchema(_TEXTS_SCHEMA),
]


class ScoringFields(StrictModel):
    """The fields that both endpoints take. `use_activation` false asks for the numbers of the head
    as they are."""

    model: str | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None


class RerankRequest(ScoringFields):
    """The `top_n` documents that go best with the query are sent, all if it is left out."""

    query: Text
    documents: Documents
    top_n: Positive | None = None
    return_documents: bool | None = None


class ScoreRequest(ScoringFields):
    """Each of `text_1` is scored with its like of `text_2`; one text goes with all of the other."""

    text_1: Texts
    text_2: Texts


class ScoringUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class RerankedDocument(msgspec.Struct, frozen=True):
    text: str


class RerankResult(msgspec.Struct, frozen=True):
    """`index` is that of the document in the request."""

    index: int
    relevance_score: float
    document: RerankedDocument | UnsetType = UNSET


class RerankBody(msgspec.Struct, frozen=True):
    id: str
    model: str
    results: tuple[RerankResult, ...]
    usage: ScoringUsage


class Score(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: str = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: tuple[Score, ...]
    usage: ScoringUsage
