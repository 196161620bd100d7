"""`POST /v1/embeddings`: the request as it comes in, and the answer."""

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from pydantic import Field, PlainValidator, WithJsonSchema

from quire.server.apis.protocol.completions import (
    PROMPT_SCHEMA,
    read_given_prompts,
)
from quire.server.apis.protocol.fields import (
    INT64_MAX,
    MAX_PRIORITY,
    Positive,
    StrictModel,
)
from quire.server.generation.input import GivenPrompt, TruncationSide


def _read_inputs(given: object) -> tuple[GivenPrompt, ...]:
    return read_given_prompts(given, "input")


Inputs: TypeAlias = Annotated[
    tuple[GivenPrompt, ...], PlainValidator(_read_inputs), WithJsonSchema(PROMPT_SCHEMA)
]


class EncodingFormat(StrEnum):
    """The ways in which a vector is written: as numbers, or as the base64 of its float32."""

    FLOAT = "float"
    BASE64 = "base64"


class EmbeddingRequest(StrictModel):
    """Each input becomes a vector. `dimensions` keeps the first so many elements of it, before it
    is normalised. Less `priority` is sooner; `deadline_ms` counts from the arrival of the
    request."""

    input: Inputs
    model: str | None = None
    encoding_format: Annotated[EncodingFormat, Field(strict=False)] | None = None
    dimensions: Positive | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Annotated[TruncationSide, Field(strict=False)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input: numbers, or the base64 of as many float32, little end first."""

    object: str = "embedding"
    index: int
    embedding: tuple[float, ...] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: tuple[Embedding, ...]
    usage: EmbeddingUsage
