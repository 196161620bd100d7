"""Tools of Anthropic's API. Hosted tools, which Anthropic runs or has taught its
models, are refused by name."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from quire.server.apis.anthropic.protocol import CustomTool
from quire.server.apis.anthropic.turns import check_cache_control, check_fields
from quire.server.apis.protocol.parse import invalid, unsupported, validate
from quire.server.errors import RequestError
from quire.server.generation.input import InputTool, NamedChoice, ToolChoice, ToolMode

_TOOL_FIELDS = (
    *("type", "name", "description", "input_schema", "strict", "cache_control"),
    *("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"),
)
_ASKING_NOTHING: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_MODES: Mapping[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}


class OfferedTools(NamedTuple):
    """Tools, and the paths of what is taken and changes nothing."""

    tools: tuple[InputTool, ...]
    no_effect: tuple[str, ...]


def tools(given: Sequence[Mapping[str, JsonValue]]) -> OfferedTools:
    """Return the tools of a request. Raises RequestError."""
    made = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given))
    no_effect = (
        f"tools[{index}].eager_input_streaming"
        for index, tool in enumerate(given)
        if tool.get("eager_input_streaming") is False  # inputs are streamed as they come
    )
    return OfferedTools(made, tuple(no_effect))


def _tool(tool: Mapping[str, JsonValue], where: str) -> InputTool:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise RequestError(
            f"Quire runs no hosted tools: '{where}.type' is {str(kind)[:100]!r}, must be 'custom' "
            "or left out.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    check_fields(tool, _TOOL_FIELDS, where)
    check_cache_control(tool, where)
    for name, passing in _ASKING_NOTHING.items():
        if tool.get(name) is not None and tool[name] not in passing:
            raise unsupported(f"{where}.{name}")
    if not isinstance(tool.get("eager_input_streaming"), bool | None):
        raise invalid(f"{where}.eager_input_streaming", "must be a boolean")
    fields = {name: tool[name] for name in CustomTool.model_fields if tool.get(name) is not None}
    custom = validate(fields, CustomTool, at=where)
    return InputTool(
        custom.name,
        custom.description,
        custom.input_schema,
        bool(custom.strict),
        where,
        f"{where}.input_schema",
    )


def tool_choice(given: Mapping[str, JsonValue] | None) -> ToolChoice:
    """Return the choice that the model has. Raises RequestError."""
    if given is None:
        return ToolChoice()
    kind, where = given.get("type"), "tool_choice"
    if not isinstance(kind, str) or kind not in (*_MODES, "tool"):
        raise invalid(f"{where}.type", "must be 'auto', 'any', 'tool' or 'none'")
    check_fields(given, ("type", "disable_parallel_tool_use", "name"), where)
    name, one_call = given.get("name"), given.get("disable_parallel_tool_use")
    if not isinstance(one_call, bool | None):
        raise invalid(f"{where}.disable_parallel_tool_use", "must be a boolean")
    if kind == "tool" and isinstance(name, str):
        among = (NamedChoice(name, f"{where}.name"),)
        return ToolChoice("required", among, names_one=True, one_call=bool(one_call))
    if kind == "tool" or name is not None:
        raise invalid(
            f"{where}.name", "the type 'tool' needs the name of a tool, and no other type takes one"
        )
    return ToolChoice(_MODES[kind], one_call=bool(one_call))
