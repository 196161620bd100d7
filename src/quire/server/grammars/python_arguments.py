"""Grammars of arguments that are keywords of a call in Python, with literals.

Values that are not plain are written as JSON, which the parser of calls reads too.
"""

import json
from collections.abc import Mapping

from quire.server.grammars.compose import literal
from quire.server.grammars.rules import Rules
from quire.server.grammars.tool_schemas import (
    ANNOTATIONS,
    CallableTool,
    Property,
    Schema,
    argument_value,
    properties_of,
)

_WORDS = {"boolean": ("True", "False"), "null": ("None",)}
_QUOTED = r"""/'([^'\\\x00-\x1f\x7f]|\\['"\\nrt])*'/"""
_FREE_KEY = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"


def python_arguments(tool: CallableTool, rules: Rules) -> str:
    """Return Lark for the arguments of a call, between its parentheses. Raises RequestError for a
    schema that keywords cannot follow."""
    if tool.is_free:
        argument = rules.add(f'{rules.add_terminal(_FREE_KEY)} "=" {_value(True, {}, rules)}')
        return f'({argument} (", " {argument})*)?'
    later = first = ""
    for each in reversed([given for given in properties_of(tool) if given.schema is not False]):
        written = _argument(each, tool, rules)
        first = rules.add(" | ".join(_first(written, each, first=first, later=later)))
        separate = rules.add(f'", " {written}')
        later = f"{separate if each.is_required else f'{separate}?'} {later}"
    return first


def _first(argument: str, given: Property, *, first: str, later: str) -> list[str]:
    """Return the ways to go on where nothing is written: with this argument, or without it."""
    return [f"{argument} {later}", *([] if given.is_required else [first or '""'])]


def _argument(given: Property, tool: CallableTool, rules: Rules) -> str:
    return rules.add(f"{literal(f'{given.name}=')} {_value(given.schema, tool.parameters, rules)}")


def _value(schema: Schema, root: Mapping[str, object], rules: Rules) -> str:
    """Return Lark for a value: what is plain in Python's words, all else as JSON."""
    if isinstance(schema, bool) or not schema.keys() - ANNOTATIONS:
        kinds = " | ".join(_value({"type": name}, root, rules) for name in ("boolean", "null"))
        anything = argument_value({}, {}, rules.separators)
        return f"({kinds} | {rules.add_terminal(_QUOTED)} | {anything})"
    said = schema.keys() - ANNOTATIONS
    kind, choices = schema.get("type"), schema.get("anyOf")
    if said == {"anyOf"} and isinstance(choices, list) and all(map(_is_schema, choices)):
        possible = [each for each in choices if each is not False] or [{"enum": []}]
        return f"({' | '.join(_value(each, root, rules) for each in possible)})"
    if isinstance(kind, list) and said == {"type"} and kind:
        return f"({' | '.join(_value({'type': each}, root, rules) for each in kind)})"
    if said == {"type"} and isinstance(kind, str) and kind in _WORDS:
        return f"({' | '.join(map(json.dumps, _WORDS[kind]))})"
    written = rules.add(argument_value(schema, root, rules.separators))
    if said == {"type"} and kind == "string":
        return f"({written} | {rules.add_terminal(_QUOTED)})"
    return written


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)
