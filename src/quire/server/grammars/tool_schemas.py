"""The schemas of tools' parameters, as grammars of calls need them."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from quire.server.errors import RequestError
from quire.server.grammars.json_values import Separators, json_value
from quire.server.grammars.source import GrammarSource

Schema: TypeAlias = Mapping[str, object] | bool

ANNOTATIONS = frozenset(
    ("$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly")
    + ("title", "writeOnly")
)
"""Keywords that say nothing about which values are valid."""
DEFINITIONS = ("$defs", "definitions")
PLAIN_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", *DEFINITIONS, *ANNOTATIONS)
)
"""Keywords that say of an object no more than which properties it has."""
_OPEN = frozenset(
    ("$ref", "additionalProperties", "allOf", "anyOf", "minProperties", "oneOf")
    + ("patternProperties",)
)


class CallableTool(NamedTuple):
    """A tool that may be called, whose function is at `field`. Where it `is_free` its arguments are
    any object, else of the schema `parameters`, at `path`. Keywords of one that `is_strict` must
    all say something; those of one that `is_coarse` may be loosened further, so that a grammar can
    hold them. The arguments of a tool with a `text_grammar` in Lark are one text, which must be of
    that, and their schema does not say it."""

    name: str
    parameters: Mapping[str, object]
    field: str
    path: str
    is_free: bool = False
    is_strict: bool = False
    is_coarse: bool = False
    text_grammar: GrammarSource | None = None


class Property(NamedTuple):
    """A property of an object, and the path of its schema."""

    name: str
    schema: Schema
    is_required: bool
    path: str


def argument_value(
    schema: Schema, root: Mapping[str, object], separators: Separators | None
) -> str:
    """Return Lark for a JSON value of a schema, with `root`'s definitions for its references."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    shared = {name: root[name] for name in DEFINITIONS if name in root}
    return json_value({**shared, **schema}, separators)


def json_arguments(tool: CallableTool, separators: Separators | None) -> str:
    """Return Lark for the arguments of a tool as a JSON object. It has no properties that its
    schema does not name, unless that says what they are or wants them."""
    if tool.is_free:
        return json_value({"type": "object"}, separators)
    schema: dict[str, object] = {"type": "object", **tool.parameters}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    is_plain = not schema.keys() & _OPEN and ("properties" in schema or not tool.parameters)
    if is_plain and isinstance(properties, dict) and isinstance(required, list):
        schema["additionalProperties"] = any(name not in properties for name in required)
    return json_value(schema, separators)


def properties_of(tool: CallableTool) -> list[Property]:
    """Return the properties of a tool that is not free, in the schema's order, those last that are
    required and not described. Raises RequestError for a schema that says more of the object than
    which properties it has."""
    schema = tool.parameters
    for keyword in schema:
        if keyword not in PLAIN_KEYWORDS:
            raise not_sayable(keyword, tool.path)
    required = _required(schema, tool.path)
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)  # as the request's checks have seen
    names = [*properties, *(name for name in required if name not in properties)]
    return [_property(name, schema, tool.path) for name in names]


def _property(name: str, schema: Mapping[str, object], path: str) -> Property:
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    where = f"{path}.properties.{name}"
    is_required = name in _required(schema, path)
    if name in properties:
        return Property(name, _schema(properties[name], where), is_required, where)
    return Property(name, _additional(schema, name, path), is_required, where)


def _required(schema: Mapping[str, object], path: str) -> list[str]:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise RequestError(
            f"Invalid '{path}.required': it must be a list of strings.", param=f"{path}.required"
        )
    return required


def _additional(schema: Mapping[str, object], name: str, path: str) -> Schema:
    found = _schema(schema.get("additionalProperties", True), f"{path}.additionalProperties")
    if found is False:
        raise RequestError(
            f"Invalid '{path}.required': nothing is valid, since {name!r} is required and not "
            "allowed.",
            param=f"{path}.required",
        )
    return found


def _schema(given: object, path: str) -> Schema:
    if not isinstance(given, dict | bool):
        raise RequestError(
            f"Invalid '{path}': it must be a JSON schema, an object or a boolean.", param=path
        )
    return given


def not_sayable(keyword: str, path: str) -> RequestError:
    """Return the error for a keyword that a format cannot be made to follow."""
    return RequestError(
        f"Invalid '{path}.{keyword}': calls in the format of this model cannot be held to "
        f"{keyword!r} here.",
        param=f"{path}.{keyword}",
        code="unsupported_parameter",
    )
