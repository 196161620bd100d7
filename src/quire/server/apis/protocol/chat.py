"""`POST /v1/chat/completions`: the request as it comes in. Content is text or parts of text."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.caching import PromptCacheOptions, RetentionPolicy, SessionName
from quire.server.apis.protocol.fields import INT64_MAX, HistoryModel, allow_more, at_most
from quire.server.apis.protocol.structured import StructuredFields
from quire.server.apis.protocol.tools import (
    MAX_ID_CHARS,
    CalledFunction,
    FunctionChoice,
    Functions,
    ToolCalls,
    ToolChoice,
    Tools,
)
from quire.server.apis.protocol.unknown_fields import NOTHING
from quire.server.generation.input import Part, TextPart
from quire.server.models.input_context import MAX_LOGPROBS

MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Text parts of one message."""
MAX_TEMPLATE_KWARGS = 64
MAX_TEMPLATE_CHARS = 2**16
MAX_DOCUMENTS = 1024

PART_TEXTS = {"text": "text", "refusal": "refusal"}
"""Types of parts that are text, and the field of each that holds it."""

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]


def _read_content(given: object) -> tuple[Part, ...]:
    """Return the parts of a content; a string is one part."""
    if isinstance(given, str):
        return (TextPart(given),)
    if not isinstance(given, list):
        raise _content_error("must be a string or a list of parts of type text")
    if len(given) > MAX_PARTS:
        raise _content_error(f"has {len(given)} parts, at most {MAX_PARTS} are allowed")
    return tuple(_read_part(part, f"[{index}]") for index, part in enumerate(given))


def _read_part(part: object, where: str) -> Part:
    if not isinstance(part, dict):
        raise _content_error("must be an object", where)
    kind = part.get("type")
    field = PART_TEXTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise _content_error(
            "must be 'text'; Quire does not support other content yet", f"{where}.type"
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise _content_error("must be a string", f"{where}.{field}")
    unknown = next((key for key in part if key not in ("type", field)), None)
    if unknown is not None:
        raise _content_error(f"is not a field of a {kind} part", f"{where}.{unknown}")
    return TextPart(text)


def _content_error(message: str, where: str = "") -> PydanticCustomError:
    return PydanticCustomError("content", "{message}", {"message": message, "where": where})


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"type": {"const": kind}, field: {"type": "string"}},
                        "required": ["type", field],
                    }
                    for kind, field in PART_TEXTS.items()
                ]
            },
            "maxItems": MAX_PARTS,
        },
        {"type": "null", "description": "Of the assistant alone."},
    ]
}


_CALL_FIELDS = ("function_call", "tool_calls")
REASONING_LISTS = ("reasoning_details", "thinking_blocks")
"""Fields in which other servers send reasoning as a list of parts."""
_REASONING_TEXTS = ("text", "summary", "thinking")
"""Fields of such parts that hold text; others are encrypted."""
_UNSAID_FIELDS = (*_CALL_FIELDS, "reasoning", "reasoning_content")
"""Fields beside which an assistant may have said nothing: calls, and reasoning that was cut."""
_OPTIONAL_FIELDS = (*_UNSAID_FIELDS, "name", "refusal", "tool_call_id")
"""Fields that clients leave empty where they have nothing to say."""


def _describe_reasoning_lists(schema: JsonDict) -> None:
    allow_more(schema)
    fields = schema["properties"]
    assert isinstance(fields, dict)
    for name in REASONING_LISTS:
        fields[name] = {
            "type": ["array", "null"],
            "description": "The reasoning in parts, without `reasoning_content`.",
        }


def _reasoning_of(parts: object) -> str | None:
    """Return the text of reasoning that is a list of parts, None where it has none."""
    given = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    fields = (part.get(name) for part in given for name in _REASONING_TEXTS)
    return "\n".join(text for text in fields if isinstance(text, str) and text) or None


# With `Part` in place of `Any` the document would list a schema that nothing refers to.
Content: TypeAlias = Annotated[
    tuple[Any, ...], PlainValidator(_read_content), WithJsonSchema(_CONTENT_SCHEMA)
]


class Message(HistoryModel):
    """One turn of the conversation. An assistant's content may be null, or left out beside its
    calls or its reasoning; a `refusal` stands for it. `reasoning` is another name of
    `reasoning_content`; `function_call` and the role `function` are those of older clients, for
    `tool_calls` and `tool`. An answer goes on with a last message that has `prefix`."""

    model_config = ConfigDict(json_schema_extra=_describe_reasoning_lists)

    role: Role
    content: Content
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: ToolCalls | None = None
    function_call: CalledFunction | None = None
    tool_call_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    prefix: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: object) -> object:
        """Return the fields without those that are empty, the content and the reasoning where they
        belong."""
        if not isinstance(given, dict):
            return given
        kept = {
            name: value
            for name, value in given.items()
            if not (name in REASONING_LISTS or (name in _OPTIONAL_FIELDS and value in NOTHING))
        }
        if "reasoning_content" not in kept and "reasoning" not in kept:
            found = (_reasoning_of(given.get(name)) for name in REASONING_LISTS)
            reasoning = next((text for text in found if text is not None), None)
            kept |= {} if reasoning is None else {"reasoning_content": reasoning}
        if kept.get("role") == "assistant":
            unsaid = None if any(name in kept for name in _UNSAID_FIELDS) else ""
            if kept.get("content") in (None, []) and isinstance(kept.get("refusal"), str):
                kept["content"] = kept["refusal"]
            elif kept.get("content", unsaid) is None:
                kept["content"] = ""
        return kept


Messages: TypeAlias = Annotated[
    list[Message],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    at_most(MAX_MESSAGES),
]
Documents: TypeAlias = Annotated[
    list[dict[str, JsonValue]], Field(max_length=MAX_DOCUMENTS), at_most(MAX_DOCUMENTS)
]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateKwargs: TypeAlias = Annotated[dict[str, JsonValue], at_most(MAX_TEMPLATE_KWARGS)]


class ChatRequest(StructuredFields):
    """The body of a chat completion. Without a limit the output may go on to the end of the
    context. `thinking_token_budget` limits the tokens between the tags of its reasoning. The
    chat template shows the model `documents`, as it reads them. With `echo` a message that is
    continued comes whole. `prompt_cache_key`, else `user`, names the conversation."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    include_reasoning: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    prompt_cache_key: SessionName | None = None
    prompt_cache_retention: RetentionPolicy | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    user: SessionName | None = None
