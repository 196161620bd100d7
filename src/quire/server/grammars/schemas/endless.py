"""Finds schemas of which no value can end, since it always holds another."""

from collections.abc import Iterator, Mapping, Sequence

from quire.server.grammars.schemas.keywords import SCHEMA_LISTS, SCHEMA_MAPS, SCHEMAS
from quire.server.grammars.schemas.references import target_of

MAX_PASSES = 16
"""Only schemas made to be hard need more to see which values end; they are taken."""


def can_end(root: Mapping[str, object]) -> bool:
    """Return whether some value of a schema, whose references are pointers, is finite: those are,
    whose parts all are."""
    places, ends = _reached(root), set[int]()
    for _ in range(MAX_PASSES):
        num_before = len(ends)
        for schema in reversed(places):
            if all(_ends(part, ends) for part in _parts(schema, root)):
                ends.add(id(schema))
        if id(root) in ends or len(ends) == num_before:
            return id(root) in ends
    return True


def _reached(root: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the schema and all that are in it or that it refers to, each once."""
    waiting, found = [root], {id(root): root}
    while waiting:
        schema = waiting.pop()
        for inner in _inner(schema, root):
            if isinstance(inner, dict) and id(inner) not in found:
                found[id(inner)] = inner
                waiting.append(inner)
    return list(found.values())


def _inner(schema: Mapping[str, object], root: Mapping[str, object]) -> Iterator[object]:
    for keyword, value in schema.items():
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            yield from value.values()
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif keyword in SCHEMAS:
            yield value
        elif keyword == "$ref":
            yield target_of(str(value), root, "")


def _ends(alternatives: Sequence[object], ends: set[int]) -> bool:
    return any(each is True or id(each) in ends for each in alternatives)


def _parts(schema: Mapping[str, object], root: Mapping[str, object]) -> Iterator[Sequence[object]]:
    """Yield the schemas that a value of this one must be of, or hold: of each list one."""
    if "$ref" in schema:
        yield [target_of(str(schema["$ref"]), root, "")]
    for keyword in ("anyOf", "oneOf"):
        given = schema.get(keyword)
        if isinstance(given, list):
            yield given
    every = schema.get("allOf")
    yield from ([each] for each in (every if isinstance(every, list) else ()))
    if schema.get("type") == "object":
        yield from _required(schema)
    if schema.get("type") == "array" and schema.get("minItems", 0) != 0:
        items = schema.get("prefixItems", schema.get("items", True))
        yield [items[0] if isinstance(items, list) and items else items or True]


def _required(schema: Mapping[str, object]) -> Iterator[Sequence[object]]:
    properties, names = schema.get("properties", {}), schema.get("required", [])
    if isinstance(properties, dict) and isinstance(names, list):
        known = (name for name in names if isinstance(name, str) and name in properties)
        yield from ([properties[name]] for name in known)
