"""Tools of Anthropic's API. Hosted tools, which Anthropic runs or has taught its models, are left
out and reported."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from quire.server.apis.anthropic.cache_marks import CacheMarks
from quire.server.apis.anthropic.protocol import CustomTool
from quire.server.apis.protocol.parse import invalid, string_of, unknown, validate
from quire.server.apis.protocol.unknown_fields import Place, UnknownFields
from quire.server.errors import RequestError
from quire.server.generation.input import InputTool, NamedChoice, ToolChoice, ToolMode

HOSTED = (
    *("advisor_", "bash_", "code_execution_", "computer_", "memory_", "text_editor_"),
    *("tool_search_tool_", "web_fetch_", "web_search_", "mcp_toolset"),
)
"""Beginnings of the types of hosted tools, which end with the day of their version."""
_TOOL = Place(
    frozenset(
        (
            *("type", "name", "description", "input_schema", "strict", "cache_control"),
            *("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"),
        )
    )
)
_CHOICE_FIELDS = ("type", "disable_parallel_tool_use", "name")
_DIRECT = "direct"
_MODES: Mapping[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}


class OfferedTools(NamedTuple):
    """Tools, the names of those that are left out, and the paths of what is taken and changes
    nothing."""

    tools: tuple[InputTool, ...] = ()
    left_out: tuple[str, ...] = ()
    no_effect: tuple[str, ...] = ()


def tools(
    given: Sequence[Mapping[str, JsonValue]], unknown: UnknownFields, marks: CacheMarks
) -> OfferedTools:
    """Return the tools of a request, whose marks are read. Raises RequestError."""
    made: list[InputTool] = []
    left_out: list[str] = []
    no_effect: list[str] = []
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        marks.read(tool, where)
        if _is_hosted(tool, where):
            name = tool.get("name")
            left_out.append(name if isinstance(name, str) else "")
            unknown.leave_out(where)
            continue
        custom = _custom(unknown.known(tool, _TOOL, where), where)
        if not _is_direct(tool, where):
            left_out.append(custom.name)
            unknown.leave_out(where)
            continue
        no_effect += _no_effect(tool, where)
        made.append(custom)
    return OfferedTools(tuple(made), tuple(left_out), tuple(no_effect))


def _is_hosted(tool: Mapping[str, JsonValue], where: str) -> bool:
    """Return whether Anthropic runs a tool, or has taught its models what it takes. Raises
    RequestError for a type that is not known."""
    if tool.get("type") in (None, "custom"):
        return False
    kind = string_of(tool, "type", where)
    if kind.startswith(HOSTED):
        return True
    raise RequestError(
        f"'{where}.type' is {kind[:100]!r}, must be 'custom', a hosted tool that Quire knows and "
        "leaves out, or left out.",
        param=f"{where}.type",
        code="unsupported_parameter",
    )


def _is_direct(tool: Mapping[str, JsonValue], where: str) -> bool:
    """Return whether the model may call a tool itself, and not only the code that it writes. Raises
    RequestError."""
    callers, path = tool.get("allowed_callers"), f"{where}.allowed_callers"
    if callers is None:
        return True
    if not isinstance(callers, list) or not all(isinstance(each, str) for each in callers):
        raise invalid(path, "must be a list of strings")
    return _DIRECT in callers


def _no_effect(tool: Mapping[str, JsonValue], where: str) -> list[str]:
    """Return the paths of what changes nothing: a tool that may be loaded later is shown at once,
    inputs are streamed as they come, and examples of inputs are not shown."""
    asks = {
        "defer_loading": tool.get("defer_loading") is True,
        "eager_input_streaming": tool.get("eager_input_streaming") is False,
        "input_examples": bool(tool.get("input_examples")),
        "allowed_callers": tool.get("allowed_callers") not in (None, [_DIRECT]),
    }
    return [f"{where}.{name}" for name, is_asked in asks.items() if is_asked]


def _custom(tool: Mapping[str, object], where: str) -> InputTool:
    for name in ("defer_loading", "eager_input_streaming"):
        if not isinstance(tool.get(name), bool | None):
            raise invalid(f"{where}.{name}", "must be a boolean")
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


def tool_choice(given: Mapping[str, JsonValue] | None, offered: OfferedTools) -> ToolChoice:
    """Return the choice that the model has among the tools. Raises RequestError."""
    if given is None:
        return ToolChoice()
    kind, where = given.get("type"), "tool_choice"
    if not isinstance(kind, str) or kind not in (*_MODES, "tool"):
        raise invalid(f"{where}.type", "must be 'auto', 'any', 'tool' or 'none'")
    for field in given:
        if field not in _CHOICE_FIELDS:
            raise unknown(f"{where}.{field[:100]}")
    name, one_call = given.get("name"), given.get("disable_parallel_tool_use")
    if not isinstance(one_call, bool | None):
        raise invalid(f"{where}.disable_parallel_tool_use", "must be a boolean")
    if kind == "tool" and isinstance(name, str):
        if name in offered.left_out:
            raise _not_run(f"{where}.name", f"the tool {name[:100]!r}")
        among = (NamedChoice(name, f"{where}.name"),)
        return ToolChoice("required", among, names_one=True, one_call=bool(one_call))
    if kind == "tool" or name is not None:
        raise invalid(
            f"{where}.name", "the type 'tool' needs the name of a tool, and no other type takes one"
        )
    has_none = not offered.tools and bool(offered.left_out)
    if has_none and kind == "any":
        raise _not_run(f"{where}.type", "all of the 'tools'")
    return ToolChoice(None if has_none else _MODES[kind], one_call=bool(one_call))


def _not_run(path: str, what: str) -> RequestError:
    return RequestError(
        f"'{path}' asks for a call, but {what} would have to be run by Anthropic or be known to "
        "the model without a schema: Quire leaves that out. Give tools with an 'input_schema'.",
        param=path,
        code="unsupported_parameter",
    )
