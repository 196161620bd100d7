"""The fields that completions and chats share, with their ranges. `None` is the same as absent."""

from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError, PydanticKnownError

from quire.server.generation.input import TruncationSide
from quire.server.models.input_context import MAX_LOGPROBS

MAX_CHOICES = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARS = 256
INT64_MAX = 2**63 - 1
MAX_PRIORITY = 10**9


def at_most(most: int) -> BeforeValidator:
    """Return a validator that refuses a longer list or object before anything is made of its
    items."""

    def check(given: object) -> object:
        if isinstance(given, list | dict) and len(given) > most:
            raise PydanticCustomError(
                "too_long",
                "has {num} items, at most {most} are allowed",
                {"num": len(given), "most": most},
            )
        return given

    return BeforeValidator(check)


class StrictModel(BaseModel):
    """A part of a request. The first field that it does not know is refused, before the others are
    looked at; of the values of a list the first wrong one ends the check.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: object) -> object:
        if isinstance(given, dict):
            unknown = next((key for key in given if key not in cls.model_fields), None)
            if unknown is not None:
                raise PydanticCustomError("unknown_field", "is unknown", {"name": str(unknown)})
        return given


def allow_more(schema: JsonDict) -> None:
    """Let the schema of an object allow fields that it does not name."""
    schema.pop("additionalProperties", None)


class HistoryModel(StrictModel):
    """A part of a history. Fields that it does not know are left out before it is checked, or
    refused, as the server is configured; the document allows them."""

    model_config = ConfigDict(json_schema_extra=allow_more)


TokenId: TypeAlias = Annotated[int, Field(ge=0, le=INT64_MAX)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=INT64_MAX)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
StopString: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _one_or_many(given: object) -> object:
    return [given] if isinstance(given, str) else given


_STOP_STRING_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_STOP_SCHEMA = {
    "anyOf": [
        _STOP_STRING_SCHEMA,
        {"type": "array", "items": _STOP_STRING_SCHEMA, "maxItems": MAX_STOP_STRINGS},
    ]
}

StopStrings: TypeAlias = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    at_most(MAX_STOP_STRINGS),
    BeforeValidator(_one_or_many),
    WithJsonSchema(_STOP_SCHEMA),
]
LogitBias: TypeAlias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIAS),
    at_most(MAX_LOGIT_BIAS),
]
StopTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True),
    at_most(MAX_STOP_TOKEN_IDS),
]

AllowedTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True),
    at_most(MAX_ALLOWED_TOKEN_IDS),
]
LogprobTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True),
    at_most(MAX_LOGPROB_TOKEN_IDS),
]
BadWords: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]],
    Field(max_length=MAX_BAD_WORDS, fail_fast=True),
    at_most(MAX_BAD_WORDS),
]


def _no_number(value: object) -> object:
    """Refuse numbers where a boolean is asked for: to Python 0 equals False."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticKnownError("literal_error", {"expected": "False"})
    return value


OnlyFalse: TypeAlias = Annotated[Literal[False], BeforeValidator(_no_number)]
MIN_TARGET_MS = 0.1
Target = Annotated[float, Field(ge=MIN_TARGET_MS)]


class StreamOptions(StrictModel):
    """Options of what a stream tells beside the text. Chunks are never padded (obfuscation)."""

    include_usage: bool | None = None
    include_obfuscation: OnlyFalse | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(StrictModel):
    """The fields that both endpoints take. `max_tokens` is the older name of
    `max_completion_tokens`. Less `priority` is sooner; `deadline_ms` counts from the arrival of the
    request. Its tokens should come within `target_ttft_ms` and `target_itl_ms`."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    logprob_token_ids: LogprobTokenIds | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Annotated[TruncationSide, Field(strict=False)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None
    target_ttft_ms: Target | None = None
    target_itl_ms: Target | None = None
