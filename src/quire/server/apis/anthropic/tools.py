"""Tools of Anthropic's API as those of a chat. Hosted tools, which Anthropic runs or has taught its
models, are refused by name."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from quire.server.apis.anthropic.turns import check_cache_control, check_fields, unsupported
from quire.server.errors import RequestError

_TOOL_FIELDS = (
    *("type", "name", "description", "input_schema", "strict", "cache_control"),
    *("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"),
)
_ASKING_NOTHING: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "input_examples": ([],),
}
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


class OfferedTools(NamedTuple):
    """Tools as a chat has them, and the paths of what is taken and changes nothing."""

    tools: list[dict[str, object]]
    no_effect: tuple[str, ...]


def tools(given: Sequence[Mapping[str, JsonValue]]) -> OfferedTools:
    """Return the tools as a chat's. Raises RequestError."""
    made, no_effect = list[dict[str, object]](), list[str]()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        made.append({"type": "function", "function": _function(tool, where)})
        if tool.get("eager_input_streaming") is False:  # inputs are streamed as they come
            no_effect.append(f"{where}.eager_input_streaming")
    return OfferedTools(made, tuple(no_effect))


def _function(tool: Mapping[str, JsonValue], where: str) -> dict[str, object]:
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
    eager = tool.get("eager_input_streaming")
    if not isinstance(eager, bool | None):
        path = f"{where}.eager_input_streaming"
        raise RequestError(f"Invalid '{path}': must be a boolean.", param=path)
    if tool.get("input_schema") is None:
        path = f"{where}.input_schema"
        raise RequestError(
            f"Missing required field '{path}'.", param=path, code="missing_required_parameter"
        )
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool["input_schema"],
        "strict": tool.get("strict"),
    }
    return {key: value for key, value in function.items() if value is not None}


def tool_choice(given: Mapping[str, JsonValue] | None) -> dict[str, object]:
    """Return the fields of a chat that say which tools may be called. Raises RequestError."""
    if given is None:
        return {}
    kind, where = given.get("type"), "tool_choice"
    if not isinstance(kind, str) or kind not in (*_CHOICES, "tool"):
        raise RequestError(
            f"Invalid '{where}.type': must be 'auto', 'any', 'tool' or 'none'.",
            param=f"{where}.type",
        )
    check_fields(given, ("type", "disable_parallel_tool_use", "name"), where)
    name, one_call = given.get("name"), given.get("disable_parallel_tool_use")
    if (kind == "tool") != isinstance(name, str):
        raise RequestError(
            f"Invalid '{where}.name': the type 'tool' needs the name of a tool, and no other type "
            "takes one.",
            param=f"{where}.name",
        )
    if not isinstance(one_call, bool | None):
        path = f"{where}.disable_parallel_tool_use"
        raise RequestError(f"Invalid '{path}': must be a boolean.", param=path)
    named = {"type": "function", "function": {"name": name}}
    return {
        "tool_choice": _CHOICES.get(kind, named),
        "parallel_tool_calls": None if one_call is None else not one_call,
    }
