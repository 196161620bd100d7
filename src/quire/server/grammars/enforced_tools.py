"""Tools whose parameters are schemas that grammars can be made of."""

from collections.abc import Mapping
from typing import NamedTuple

from quire.server.grammars.schemas.enforceable import SchemaTerms, enforceable
from quire.server.grammars.text_values import TEXT_KEYWORDS
from quire.server.grammars.tool_schemas import (
    ANNOTATIONS,
    DEFINITIONS,
    PLAIN_KEYWORDS,
    CallableTool,
    not_sayable,
)
from quire.server.parsers.formats import HeadedCall, JsonCall, TaggedCall, ToolFormat

MAX_FOLLOWED = 8
_OPENING = frozenset(
    ("if", "not", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames")
    + ("unevaluatedProperties",)
)
"""Keywords that speak of properties which are not described."""


class EnforcedTool(NamedTuple):
    """A tool as grammars can be made of it, what the client is warned of, and the paths of keywords
    that calls are not held to."""

    tool: CallableTool
    warnings: tuple[str, ...] = ()
    loosened: tuple[str, ...] = ()


def enforced_tool(tool: CallableTool, form: ToolFormat) -> EnforcedTool:
    """Return a tool as grammars of its calls in a format can be made of it. Raises RequestError for
    parameters that are no schema, and for those of a strict tool that would not be enforced."""
    if tool.is_free:
        return EnforcedTool(tool)
    is_json = all(isinstance(each, JsonCall | HeadedCall) for each in form.syntax)
    terms = SchemaTerms(tool.is_strict, tool.is_coarse)
    made = enforceable(tool.parameters, tool.path, terms, names_root=not is_json)
    schema: Mapping[str, object] = made.schema
    if tool.parameters.keys() & _OPENING and "additionalProperties" not in schema:
        schema = {**schema, "additionalProperties": True}
    loosened = dict.fromkeys(made.loosened)
    if not is_json:
        is_tagged = any(isinstance(each, TaggedCall) for each in form.syntax)
        schema = _one_by_one(tool, schema, loosened, is_tagged=is_tagged)
    return EnforcedTool(tool._replace(parameters=schema), made.warnings, tuple(loosened))


def _one_by_one(
    tool: CallableTool,
    schema: Mapping[str, object],
    loosened: dict[str, None],
    *,
    is_tagged: bool,
) -> Mapping[str, object]:
    """Return a schema of properties that are written on their own: of the object it says no more
    than which there are."""
    flat = _flat(schema)
    if flat is None:
        said = tool.parameters.keys() - PLAIN_KEYWORDS
        for keyword in (each for each in tool.parameters if each in said):
            _lose(keyword, tool.path, tool, loosened)
        flat = {name: each for name, each in schema.items() if name in PLAIN_KEYWORDS}
        flat = _with_branches(flat, schema)
    properties = flat.get("properties")
    if not is_tagged or not isinstance(properties, dict):
        return flat
    given = tool.parameters.get("properties")
    told = given if isinstance(given, dict) else {}
    texts = {
        name: _text(each, told.get(name), f"{tool.path}.properties.{name}", tool, loosened)
        for name, each in properties.items()
    }
    return {**flat, "properties": texts}


def _flat(schema: Mapping[str, object]) -> dict[str, object] | None:
    """Return a schema that is plain, or that refers to one that is; else None."""
    definitions = schema.get("$defs")
    for _ in range(MAX_FOLLOWED):
        if not schema.keys() - PLAIN_KEYWORDS:
            return {**schema, **({} if definitions is None else {"$defs": definitions})}
        if schema.keys() - {*DEFINITIONS, *ANNOTATIONS, "type"} != {"$ref"}:
            break
        name = str(schema["$ref"]).rpartition("/")[2]
        target = definitions.get(name) if isinstance(definitions, dict) else None
        if not isinstance(target, dict):
            break
        schema = target
    return None


def _with_branches(flat: dict[str, object], schema: Mapping[str, object]) -> dict[str, object]:
    """Return a plain schema that knows the properties of all branches too; which go together it
    does not say."""
    properties = flat.get("properties")
    known = dict(properties) if isinstance(properties, dict) else {}
    for keyword in ("allOf", "anyOf"):
        branches = schema.get(keyword)
        for branch in branches if isinstance(branches, list) else ():
            if not isinstance(branch, dict):
                continue
            inner = _flat({**branch, "$defs": schema.get("$defs", {})}) or branch
            held = inner.get("properties")
            for name, each in (held if isinstance(held, dict) else {}).items():
                if each is not False:
                    known.setdefault(name, each)
    return {**flat, "properties": known} if known else flat


def _text(
    schema: object, told: object, path: str, tool: CallableTool, loosened: dict[str, None]
) -> object:
    """Return a schema of strings that says no more than text in tags can be held to."""
    if not isinstance(schema, dict) or schema.get("type") != "string":
        return schema
    if not schema.keys() - TEXT_KEYWORDS - ANNOTATIONS:
        return schema
    given = told if isinstance(told, dict) else {}
    for keyword in given:
        if keyword not in TEXT_KEYWORDS | ANNOTATIONS:
            _lose(keyword, path, tool, loosened)
    return {name: each for name, each in schema.items() if name in TEXT_KEYWORDS}


def _lose(keyword: str, path: str, tool: CallableTool, loosened: dict[str, None]) -> None:
    """Note a keyword that calls are not held to. Raises RequestError where that was promised."""
    if tool.is_strict:
        raise not_sayable(keyword, path)
    loosened.setdefault(f"{path}.{keyword}")
