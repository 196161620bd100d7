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

from quire.server.apis.protocol.fields import INT64_MAX, StrictModel, at_most
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
from quire.server.generation.input import Part, TextPart
from quire.server.models.input_context import MAX_LOGPROBS

MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Text parts of one message."""
MAX_TEMPLATE_KWARGS = 64
MAX_TEMPLATE_CHARS = 2**16
MAX_DOCUMENTS = 1024

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
    if part.get("type") != "text":
        raise _content_error(
            "must be 'text'; Quire does not support other content yet", f"{where}.type"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _content_error("must be a string", f"{where}.text")
    unknown = next((key for key in part if key not in ("type", "text")), None)
    if unknown is not None:
        raise _content_error("is not a field of a text part", f"{where}.{unknown}")
    return TextPart(text)


def _content_error(message: str, where: str = "") -> PydanticCustomError:
    return PydanticCustomError("content", "{message}", {"message": message, "where": where})


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
                "additionalProperties": False,
            },
            "maxItems": MAX_PARTS,
        },
        {"type": "null", "description": "Of the assistant alone."},
    ]
}


_RESPONSE_FIELDS = frozenset(("annotations", "audio", "refusal"))
"""Fields of answers that clients send back. Empty ones ask for nothing; Quire acts on none."""
_CALL_FIELDS = ("function_call", "tool_calls")
_UNSAID_FIELDS = (*_CALL_FIELDS, "reasoning", "reasoning_content")
"""Fields beside which an assistant may have said nothing: calls, and reasoning that was cut."""
_OPTIONAL_FIELDS = (*_UNSAID_FIELDS, "name", "tool_call_id")
"""Fields that clients leave empty where they have nothing to say."""
_NOTHING: tuple[object, ...] = (None, "", [], {})


def _describe_response_fields(schema: JsonDict) -> None:
    fields = schema["properties"]
    assert isinstance(fields, dict)
    for name in sorted(_RESPONSE_FIELDS):
        fields[name] = {"enum": [None, "", [], {}], "description": "Taken if it is empty."}


# With `Part` in place of `Any` the document would list a schema that nothing refers to.
Content: TypeAlias = Annotated[
    tuple[Any, ...], PlainValidator(_read_content), WithJsonSchema(_CONTENT_SCHEMA)
]


class Message(StrictModel):
    """One turn of the conversation. What an assistant said may be null, or left out beside its
    calls or its reasoning. `reasoning` is another name of `reasoning_content`; `function_call` and
    the role `function` are those of older clients, for `tool_calls` and `tool`."""

    model_config = ConfigDict(json_schema_extra=_describe_response_fields)

    role: Role
    content: Content
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: ToolCalls | None = None
    function_call: CalledFunction | None = None
    tool_call_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        nonempty = [key for key in given if key in _RESPONSE_FIELDS and given[key] not in _NOTHING]
        if nonempty:
            where = {"where": f".{nonempty[0]}"}
            raise PydanticCustomError("unsupported", "is not supported yet", where)
        kept = {key: value for key, value in given.items() if key not in _RESPONSE_FIELDS}
        for name in _OPTIONAL_FIELDS:
            if name in kept and kept[name] in _NOTHING:
                del kept[name]
        unsaid = None if any(name in kept for name in _UNSAID_FIELDS) else ""
        if kept.get("role") == "assistant" and kept.get("content", unsaid) is None:
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
    continued comes whole."""

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
