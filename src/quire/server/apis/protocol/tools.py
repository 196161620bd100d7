"""Tools of a chat request, and calls of them that histories hold: OpenAI's fields."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.fields import HistoryModel, at_most
from quire.server.generation.input import InputTool, ToolMode

MAX_TOOLS = 512
MAX_CALLS = 512
"""Calls of one message."""
MAX_NAME_CHARS = 256
MAX_ID_CHARS = 256

ToolName: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class Function(HistoryModel):
    """A function that the model may call. `parameters` is the JSON schema of its arguments, an
    object; where `strict`, calls are held to it."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(HistoryModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function


Tools: TypeAlias = Annotated[
    list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), at_most(MAX_TOOLS)
]


Functions: TypeAlias = Annotated[
    list[Function], Field(max_length=MAX_TOOLS, fail_fast=True), at_most(MAX_TOOLS)
]


def input_tool(function: Function, path: str) -> InputTool:
    """Return a function, which the client wrote at a path, as the tool of an input."""
    return InputTool(
        function.name,
        function.description,
        function.parameters,
        bool(function.strict),
        path,
        f"{path}.parameters",
    )


class NamedTool(NamedTuple):
    """A choice of one tool."""

    name: str


class AllowedTools(NamedTuple):
    """A choice among some of the tools, of which the model must call one if it `is_required`."""

    names: tuple[str, ...]
    is_required: bool


CHOICES: Mapping[str, ToolMode] = {"none": "none", "auto": "auto", "required": "required"}
ALLOWED_TOOLS = "allowed_tools"
MODES = ("auto", "required")


def _read_choice(given: object) -> str | NamedTool | AllowedTools:
    if isinstance(given, str) and given in CHOICES:
        return given
    if isinstance(given, dict) and given.get("type") == ALLOWED_TOOLS:
        return _read_allowed(given.get(ALLOWED_TOOLS))
    name = _function_name(given)
    if name is None:
        raise PydanticCustomError(
            "tool_choice",
            "must be 'none', 'auto', 'required', an object with 'function.name' or one of type "
            "'allowed_tools'",
        )
    return NamedTool(name)


def _function_name(given: object) -> str | None:
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _read_allowed(given: object) -> AllowedTools:
    mode = given.get("mode") if isinstance(given, dict) else None
    tools = given.get("tools") if isinstance(given, dict) else None
    names = [_function_name(each) for each in tools] if isinstance(tools, list) else []
    known = tuple(name for name in names if name is not None)
    if mode not in MODES or not known or len(known) < len(names):
        message = "must have a 'mode', 'auto' or 'required', and 'tools' with 'function.name'"
        where = f".{ALLOWED_TOOLS}"
        raise PydanticCustomError("tool_choice", "{message}", {"message": message, "where": where})
    return AllowedTools(known, mode == "required")


_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_ALLOWED_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"const": ALLOWED_TOOLS},
        ALLOWED_TOOLS: {
            "type": "object",
            "properties": {
                "mode": {"enum": [*MODES]},
                "tools": {"type": "array", "items": _NAMED_SCHEMA, "minItems": 1},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", ALLOWED_TOOLS],
}
ToolChoice: TypeAlias = Annotated[
    str | NamedTool | AllowedTools,
    PlainValidator(_read_choice),
    WithJsonSchema({"anyOf": [{"enum": [*CHOICES]}, _NAMED_SCHEMA, _ALLOWED_SCHEMA]}),
]


def _read_function_call(given: object) -> str | NamedTool:
    if isinstance(given, str) and given in ("none", "auto"):
        return given
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str):
        raise PydanticCustomError(
            "function_call", "must be 'none', 'auto' or an object with 'name'"
        )
    return NamedTool(name)


FunctionChoice: TypeAlias = Annotated[
    str | NamedTool,
    PlainValidator(_read_function_call),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto"]},
                {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            ]
        }
    ),
]


class _NotANumber(Exception):
    """The text holds a number that JSON does not have, or that is too large."""


def _read_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotANumber(text)
    return value


def read_arguments(given: object) -> dict[str, object] | str:
    """Return the arguments of a call, whose JSON the client gives as a string: as the object that
    templates expect, or as the text that they are where they are none, as where an output was cut
    off within them. Refuse numbers that are not finite: templates would write what is no JSON."""
    if not isinstance(given, str):
        raise PydanticCustomError("arguments", "must be a string, the JSON of an object")
    try:
        value = json.loads(given or "{}", parse_float=_read_finite, parse_constant=_read_finite)
    except _NotANumber as error:
        message = f"holds the number {str(error)[:20]}, which is not finite"
        raise PydanticCustomError("arguments", "{message}", {"message": message}) from None
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given


class CalledFunction(HistoryModel):
    """The function of a call, with its arguments."""

    name: ToolName
    arguments: Annotated[
        dict[str, object] | str, PlainValidator(read_arguments), WithJsonSchema({"type": "string"})
    ]


class ToolCall(HistoryModel):
    """A call that an assistant made. `index` is that of streams, and `status` that of a call which
    broke off: some clients send them back."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    status: Literal["completed", "incomplete"] | None = None


ToolCalls: TypeAlias = Annotated[
    list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True), at_most(MAX_CALLS)
]
