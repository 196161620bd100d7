"""The keywords of JSON schemas, by what stands in them and by what becomes of them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

SCHEMA_MAPS = ("properties", "patternProperties")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMAS = ("items", "additionalProperties", "additionalItems")
HELD_MAPS = (*SCHEMA_MAPS, "$defs", "definitions", "dependentSchemas", "dependencies")
HELD = (
    *SCHEMAS,
    *("not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
ENFORCED = frozenset(
    (
        *(*SCHEMA_MAPS, *SCHEMA_LISTS, *SCHEMAS),
        *("$ref", "type", "enum", "const", "required", "minProperties", "maxProperties"),
        *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""Keywords that grammars are made of."""
REWRITTEN = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    )
)
"""Keywords that become others where that can be done."""
NOT_ENFORCED = frozenset(("extends", "disallow", "divisibleBy"))
"""Keywords of old drafts, which mean something and are never enforced."""
ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary"),
        *("$dynamicAnchor", "$recursiveAnchor"),
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
        *("writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "discriminator"),
        *("externalDocs", "xml"),
    )
)
SAYING = ENFORCED | REWRITTEN
"""Keywords that a grammar can be held to, at least in some places."""
PLAIN = frozenset(
    (
        *("type", "enum", "const", "properties", "required", "additionalProperties"),
        *("anyOf", "$ref"),
    )
)
"""Keywords that stand in a grammar as they are: among these alone nothing is rewritten."""
KNOWN = SAYING | NOT_ENFORCED | ANNOTATIONS
TYPES = ("null", "boolean", "number", "string", "array", "object")
"""All kinds of values; those of the type `integer` are numbers."""


class SchemaNode(NamedTuple):
    """A schema, and the path to it."""

    schema: object
    path: str


def inner_schemas(schema: Mapping[str, object], path: str) -> Iterator[SchemaNode]:
    """Yield what stands in the places for schemas of this one, whatever it is."""
    for keyword, value in schema.items():
        where = f"{path}.{keyword}"
        if keyword in HELD_MAPS and isinstance(value, dict):
            yield from (SchemaNode(each, f"{where}.{name}") for name, each in value.items())
        elif isinstance(value, list) and keyword in (*SCHEMA_LISTS, "items"):
            yield from (SchemaNode(each, f"{where}[{index}]") for index, each in enumerate(value))
        elif keyword in HELD:
            yield SchemaNode(value, where)
