"""Checks a JSON schema for what a grammar would not hold an output to, and for values that no
output can ever complete. What is wrong is named by its path.

llguidance enforces the keywords listed here and reads all others as annotations or, by the draft
that a schema names, refuses them without a path:
https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import unquote

from quire.server.errors import RequestError
from quire.server.suggestion import closest

MAX_PATH_CHARS = 200
MAX_WARNED = 8
"""So many keywords without effect are named."""
MAX_MULTIPLE = 10_000
"""An expression for the multiples of so large a number takes 35 ms to build, and 3 MB."""
MAX_PASSES = 16
"""Only schemas made to be hard need more to see which values end; they are taken."""
SCHEMA_MAPS = ("properties", "patternProperties")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMAS = ("items", "additionalProperties", "additionalItems")
ENFORCED = frozenset(
    (
        *(*SCHEMA_MAPS, *SCHEMA_LISTS, *SCHEMAS),
        *("$ref", "type", "enum", "const", "required", "minProperties", "maxProperties"),
        *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "$vocabulary"),
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
        *("writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "discriminator"),
        *("externalDocs", "xml"),
    )
)
NOT_ENFORCED = frozenset(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "extends"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
        *("disallow", "divisibleBy"),
    )
)


class SchemaNode(NamedTuple):
    """A schema that is an object, and the path to it."""

    schema: Mapping[str, object]
    path: str


def check_schema(schema: Mapping[str, object], field: str, *, strict: bool) -> tuple[str, ...]:
    """Return warnings of keywords that say nothing. Raises RequestError for keywords that are not
    enforced, references that lead nowhere, and a schema of which no value can end.

    field: the path of the schema itself.
    strict: a keyword that says nothing is refused as well.
    """
    unknown: list[str] = []
    places = list(_reached(schema, field))
    for place in places:
        unknown += _unknown_keywords(place, strict=strict)
        _check_num_properties(place)
    _check_multiples(places)
    if not _can_end(schema, places):
        raise _invalid(field, "a value of it can never end, since it always holds another")
    if not unknown:
        return ()
    shown = ", ".join(unknown[:MAX_WARNED])
    return (f"keywords of the schema without effect: {shown}",)


def _invalid(path: str, why: str) -> RequestError:
    shown = path[:MAX_PATH_CHARS]
    return RequestError(f"Invalid '{shown}': {why}.", param=shown)


def _unknown_keywords(place: SchemaNode, *, strict: bool) -> Iterator[str]:
    for keyword in place.schema:
        path = f"{place.path}.{keyword}"[:MAX_PATH_CHARS]
        if keyword in NOT_ENFORCED or (keyword == "x-guidance"):
            raise RequestError(
                f"'{path}' is a keyword that cannot be enforced.",
                param=path,
                code="unsupported_parameter",
            )
        if keyword in ENFORCED or keyword in ANNOTATIONS or keyword.startswith("x-"):
            continue
        if strict:
            meant = closest(keyword, ENFORCED)
            hint = "" if meant is None else f"; did you mean '{meant}'?"
            raise _invalid(path, f"is no keyword of JSON schemas, which 'strict' asks for{hint}")
        yield ascii(path)


def _check_num_properties(place: SchemaNode) -> None:
    """Raise RequestError where names that are not given must be different ones: nothing keeps a
    model from one name twice."""
    least, required = place.schema.get("minProperties"), place.schema.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > num_required + 1:
        raise _invalid(
            f"{place.path}.minProperties",
            f"can be at most one more than the properties in 'required', {num_required} here, "
            "since a name could come twice",
        )


def _check_multiples(places: Sequence[SchemaNode]) -> None:
    """Raise RequestError where `multipleOf` would make an expression of too many states, which are
    as many as the least common multiple of all that a value must be a multiple of."""
    common = 1
    for place in places:
        divisor = place.schema.get("multipleOf")
        if isinstance(divisor, int | float) and math.isfinite(divisor):
            common = math.lcm(common, _coefficient(divisor))
        if common > MAX_MULTIPLE:
            raise _invalid(
                f"{place.path}.multipleOf",
                "the least common multiple of all 'multipleOf' in a schema, each without its "
                f"decimal point, can be at most {MAX_MULTIPLE}",
            )


def _coefficient(number: float) -> int:
    """Return a number as an integer, times the least power of ten that makes it one."""
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    scale: int = 10 ** max(exponent, 0)
    return int("".join(map(str, digits))) * scale


def _reached(schema: Mapping[str, object], field: str) -> Iterator[SchemaNode]:
    """Yield the schema and all that are in it or that it refers to, each once."""
    waiting, seen = [SchemaNode(schema, field)], {id(schema)}
    while waiting:
        place = waiting.pop()
        yield place
        for path, value in _inner(place, schema, field):
            if isinstance(value, bool):
                continue
            if not isinstance(value, dict):
                raise _invalid(path, "must be a schema, an object or a boolean")
            if id(value) not in seen:
                seen.add(id(value))
                waiting.append(SchemaNode(value, path))


def _inner(
    place: SchemaNode, root: Mapping[str, object], field: str
) -> Iterator[tuple[str, object]]:
    """Yield paths and values of the schemas in this one, also of the one that it refers to."""
    for keyword, value in place.schema.items():
        path = f"{place.path}.{keyword}"
        if keyword in SCHEMA_MAPS:
            if not isinstance(value, dict):
                raise _invalid(path, "must be an object")
            yield from ((f"{path}.{name}", each) for name, each in value.items())
        elif keyword in SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise _invalid(path, "must be a list of schemas")
            yield from ((f"{path}[{index}]", each) for index, each in enumerate(value))
        elif keyword in SCHEMAS:
            yield path, value
        elif keyword == "$ref" and _is_pointer(value, path):
            yield f"{field}{str(value)[1:].replace('/', '.')}", target_of(str(value), root, path)


def _is_pointer(reference: object, path: str) -> bool:
    """Return whether a reference is a JSON pointer, not a name. Raises RequestError where it is
    neither."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _invalid(path, "must be a reference into this schema, as '#/$defs/name'")
    return reference == "#" or reference.startswith("#/")


def target_of(reference: str, root: Mapping[str, object], path: str) -> object:
    """Return what a JSON pointer refers to (RFC 6901). Raises RequestError where it leads nowhere;
    `path` is where the reference stands."""
    found: object = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise _invalid(path, f"leads nowhere: there is no {reference[:MAX_PATH_CHARS]!r}")
    return found


def _can_end(root: Mapping[str, object], places: Sequence[SchemaNode]) -> bool:
    """Return whether some value of the schema is finite: those are, whose parts all are."""
    ends: set[int] = set()
    for _ in range(MAX_PASSES):
        num_before = len(ends)
        for place in reversed(places):
            if all(_ends(part, ends) for part in _parts(place.schema, root)):
                ends.add(id(place.schema))
        if id(root) in ends or len(ends) == num_before:
            return id(root) in ends
    return True


def _ends(alternatives: Sequence[object], ends: set[int]) -> bool:
    return any(each is True or id(each) in ends for each in alternatives)


def _parts(schema: Mapping[str, object], root: Mapping[str, object]) -> Iterator[Sequence[object]]:
    """Yield the schemas that a value of this one must be of, or hold: of each list one."""
    if _is_pointer(schema.get("$ref", "#name"), ""):
        yield [target_of(str(schema["$ref"]), root, "")]
    for keyword in ("anyOf", "oneOf"):
        given = schema.get(keyword)
        if isinstance(given, list):
            yield given
    every = schema.get("allOf")
    yield from ([each] for each in (every if isinstance(every, list) else ()))
    if schema.get("type") == "object":
        yield from _required(schema)
    if schema.get("type") == "array" and schema.get("minItems", 0) not in (0, 0.0):
        items = schema.get("prefixItems", schema.get("items", True))
        yield [items[0] if isinstance(items, list) and items else items or True]


def _required(schema: Mapping[str, object]) -> Iterator[Sequence[object]]:
    properties, names = schema.get("properties", {}), schema.get("required", [])
    if isinstance(properties, dict) and isinstance(names, list):
        known = (name for name in names if isinstance(name, str) and name in properties)
        yield from ([properties[name]] for name in known)
