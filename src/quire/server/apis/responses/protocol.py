"""`POST /v1/responses`: the request as it comes in, and the answer. Items of `input`, tools and
formats are checked where they become those of a chat."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.caching import PromptCacheOptions, RetentionPolicy, SessionName
from quire.server.apis.protocol.chat import MAX_MESSAGES, Effort
from quire.server.apis.protocol.fields import OnlyFalse, Positive, StrictModel, at_most
from quire.server.generation.usage import CachedTokens, ChoiceAccount, CompletionTokensDetails
from quire.server.models.input_context import MAX_LOGPROBS


def _read_input(given: object) -> str | list[dict[str, object]]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise PydanticCustomError("input", "must be a string or a list of items")
    if len(given) > MAX_MESSAGES:
        message = f"has {len(given)} items, at most {MAX_MESSAGES} are allowed"
        raise PydanticCustomError("input", "{message}", {"message": message})
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise PydanticCustomError("input", "must be an object", {"where": f"[{index}]"})
    return given


_ITEMS_SCHEMA = {
    "type": "array",
    "items": {"type": "object"},
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
}
Input: TypeAlias = Annotated[
    str | list[dict[str, object]],
    PlainValidator(_read_input),
    WithJsonSchema({"anyOf": [{"type": "string"}, _ITEMS_SCHEMA]}),
]
Objects: TypeAlias = Annotated[list[dict[str, JsonValue]], at_most(MAX_MESSAGES)]
Anything: TypeAlias = object
LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
ACTED_ON = (LOGPROBS, SEALED_REASONING)
Included: TypeAlias = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""All but log probabilities and reasoning tell of what there never is here, and so change
nothing."""


class ReasoningFields(StrictModel):
    """The extent of the reasoning, which is sent as it is, without a summary. How much of that of
    earlier turns the model sees is the template's to say (`context`)."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class TextFields(StrictModel):
    """The form that the text must have; how wordy it is, is the model's to say (`verbosity`)."""

    format: dict[str, JsonValue] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(StrictModel):
    """Options of a stream. Events are never padded (obfuscation)."""

    include_obfuscation: OnlyFalse | None = None


class ResponsesRequest(StrictModel):
    """The body of a request for a response. `prompt_cache_key`, else the responses that it goes on
    from, else `user` name its conversation."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    tools: Objects | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[Included], Field(max_length=16)] | None = None
    metadata: Annotated[dict[str, str], at_most(16)] | None = None
    user: SessionName | None = None
    prompt_cache_key: SessionName | None = None
    prompt_cache_retention: RetentionPolicy | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None


class OutputText(msgspec.Struct, frozen=True):
    text: str
    logprobs: Anything = ()
    annotations: tuple[object, ...] = ()
    type: str = "output_text"


class MessageItem(msgspec.Struct, frozen=True):
    id: str
    status: str
    content: tuple[Anything, ...]
    role: str = "assistant"
    type: str = "message"


class ReasoningText(msgspec.Struct, frozen=True):
    text: str
    type: str = "reasoning_text"


class ReasoningItem(msgspec.Struct, frozen=True):
    """Reasoning. `encrypted_content` is there where the client asks for it."""

    id: str
    status: str
    content: tuple[ReasoningText, ...]
    summary: tuple[object, ...] = ()
    encrypted_content: str | UnsetType = UNSET
    type: str = "reasoning"


class CallItem(msgspec.Struct, frozen=True):
    """A call of a function, whose namespace is there if it has one."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    type: str = "function_call"


class CustomCallItem(msgspec.Struct, frozen=True):
    """A call of a custom tool, whose input is text."""

    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    type: str = "custom_tool_call"


OutputItem: TypeAlias = MessageItem | ReasoningItem | CallItem | CustomCallItem


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: CompletionTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class FailureDetails(msgspec.Struct, frozen=True):
    """The reason why a response failed, by one of OpenAI's codes."""

    code: str
    message: str


def _schema(*types: str) -> msgspec.Meta:
    """Return what the document says of a field that may be JSON already."""
    return msgspec.Meta(extra_json_schema={"type": list(types)})


class ResponseBody(msgspec.Struct, frozen=True):
    """The answer, with what the client asked beside it. `usage` is null until it has ended."""

    id: str
    created_at: int
    model: str
    status: str
    output: tuple[Anything, ...]
    usage: ResponseUsage | None
    incomplete_details: IncompleteDetails | None
    instructions: Annotated[Anything, _schema("string", "null")]
    metadata: Annotated[Anything, _schema("object")]
    parallel_tool_calls: bool
    tool_choice: Anything
    tools: Annotated[Anything, _schema("array")]
    temperature: float | None
    top_p: float | None
    top_logprobs: int
    max_output_tokens: int | None
    reasoning: dict[str, str | None]
    text: Annotated[Anything, _schema("object")]
    user: Annotated[Anything, _schema("string", "null")]
    object: str = "response"
    error: FailureDetails | None = None
    previous_response_id: str | None = None
    truncation: str = "disabled"
    background: bool = False
    store: bool = False
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, str] | None = None
    quire: ChoiceAccount | UnsetType = UNSET


class ResponseDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True):
    """A page of the items of an input."""

    data: tuple[Anything, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
