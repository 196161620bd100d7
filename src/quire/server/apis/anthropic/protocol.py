"""`POST /v1/messages`: the request as it comes in. Blocks, tools and formats are checked where they
become those of a chat."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.chat import MAX_MESSAGES, MAX_PARTS
from quire.server.apis.protocol.fields import (
    INT64_MAX,
    MAX_PRIORITY,
    MAX_STOP_STRINGS,
    Positive,
    StopString,
    StrictModel,
    Target,
    at_most,
)
from quire.server.apis.protocol.tools import MAX_TOOLS, ToolName


def _read_objects(given: object, what: str, most: int) -> list[dict[str, object]]:
    """Return a list of objects, which are checked later."""
    if not isinstance(given, list) or not given:
        raise _error(f"must be {what} that is not empty")
    if len(given) > most:
        raise _error(f"has {len(given)} items, at most {most} are allowed")
    for index, each in enumerate(given):
        if not isinstance(each, dict):
            raise _error("must be an object", f"[{index}]")
    return given


def _error(message: str, where: str = "") -> PydanticCustomError:
    return PydanticCustomError("objects", "{message}", {"message": message, "where": where})


def _read_turns(given: object) -> list[dict[str, object]]:
    return _read_objects(given, "a list of messages", MAX_MESSAGES)


def _read_system(given: object) -> str | list[dict[str, object]]:
    what = "a string or a list of text blocks"
    return given if isinstance(given, str) else _read_objects(given, what, MAX_PARTS)


def _objects_schema(most: int) -> dict[str, object]:
    return {"type": "array", "items": {"type": "object"}, "minItems": 1, "maxItems": most}


Turns: TypeAlias = Annotated[
    list[dict[str, object]],
    PlainValidator(_read_turns),
    WithJsonSchema(_objects_schema(MAX_MESSAGES)),
]
System: TypeAlias = Annotated[
    str | list[dict[str, object]],
    PlainValidator(_read_system),
    WithJsonSchema({"anyOf": [{"type": "string"}, _objects_schema(MAX_PARTS)]}),
]
Tools: TypeAlias = Annotated[list[dict[str, JsonValue]], at_most(MAX_TOOLS)]
StopSequences: TypeAlias = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    at_most(MAX_STOP_STRINGS),
]
MAX_EDITS = 32
MAX_METADATA = 16
OutputEffort: TypeAlias = Literal["low", "medium", "high", "xhigh", "max"]


class CustomTool(StrictModel):
    """A tool that the client runs. `input_schema` is the JSON schema of its input, an object."""

    name: ToolName
    input_schema: dict[str, JsonValue]
    description: str | None = None
    strict: bool | None = None


class CacheControl(StrictModel):
    """Ends a beginning of the prompt that is to stay in the prefix cache for `ttl`, five minutes by
    default. Whatever requests begin with alike is computed once without it too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class Thinking(StrictModel):
    """Says whether the model is to reason, and for how many tokens at most. With `display`
    `omitted` the reasoning is not sent."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Positive | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(StrictModel):
    """Says how far the model is to reason, and which form the text must have."""

    effort: OutputEffort | None = None
    format: dict[str, JsonValue] | None = None


class ContextManagement(StrictModel):
    """Edits of the conversation that a server is to make before the model reads it."""

    edits: Annotated[list[dict[str, JsonValue]], at_most(MAX_EDITS)] | None = None


class CountTokensRequest(StrictModel):
    """The body of a request for the number of tokens that a conversation has."""

    model: str | None = None
    messages: Turns
    system: System | None = None
    tools: Tools | None = None
    tool_choice: dict[str, JsonValue] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, JsonValue] | None = None
    cache_control: CacheControl | None = None
    context_management: ContextManagement | None = None


class MessagesRequest(CountTokensRequest):
    """The body of a request for the next message of a conversation, which `metadata.user_id`
    names."""

    max_tokens: Positive
    metadata: Annotated[dict[str, JsonValue], at_most(MAX_METADATA)] | None = None
    stop_sequences: StopSequences | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None
    target_ttft_ms: Target | None = None
    target_itl_ms: Target | None = None
