"""Counts how deep the values of a JSON schema are nested."""

from collections.abc import Iterable, Iterator, Mapping

from quire.server.grammars.schemas.keywords import SCHEMA_MAPS, SCHEMAS
from quire.server.grammars.schemas.references import target_of

_SAME_VALUE = ("anyOf", "oneOf", "allOf")
_WITHIN = (*SCHEMA_MAPS, *SCHEMAS, "prefixItems")
_DECIDED = frozenset(("enum", "const", "$ref", *_SAME_VALUE, *_WITHIN))
"""Keywords by which a schema says what its values hold, or leaves that to another."""
_CONTAINERS = frozenset(("object", "array"))


def num_levels(schema: Mapping[str, object], most: int) -> int:
    """Return how many arrays and objects within one another the schema describes, 0 for a plain
    value. It is `most` where they may be more, or where the schema leaves open what they hold."""
    level = _alternatives([schema], schema)
    for depth in range(most):
        if not any(map(_is_container, level)):
            return depth
        if any(map(_is_open, level)):
            return most
        level = _alternatives((inner for each in level for inner in _within(each)), schema)
    return most


def _alternatives(
    schemas: Iterable[object], root: Mapping[str, object]
) -> list[Mapping[str, object]]:
    """Return the schemas, and those that they refer to for the same value, each once."""
    found: dict[int, Mapping[str, object]] = {}
    waiting = list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        if not isinstance(schema, dict) or id(schema) in found:
            continue
        found[id(schema)] = schema
        waiting += (each for keyword in _SAME_VALUE for each in _listed(schema.get(keyword)))
        if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
            waiting.append(target_of(reference, root, "$ref"))
    return list(found.values())


def _listed(given: object) -> list[object]:
    return given if isinstance(given, list) else []


def _within(schema: Mapping[str, object]) -> Iterator[object]:
    """Yield the schemas of what a value of this one holds. `additionalProperties` that may be
    anything are not described: they are laid out as deep as those that are."""
    for keyword in _WITHIN:
        given = schema.get(keyword)
        if keyword in SCHEMA_MAPS and isinstance(given, dict):
            yield from given.values()
        elif isinstance(given, list):
            yield from given
        elif isinstance(given, dict) or (given is True and keyword == "items"):
            yield given


def _kinds(schema: Mapping[str, object]) -> frozenset[object]:
    """Return which containers the values may be, as far as `type` says."""
    given = schema.get("type")
    return _CONTAINERS & frozenset(_listed(given) or [given]) if "type" in schema else _CONTAINERS


def _is_container(schema: Mapping[str, object]) -> bool:
    return bool(_kinds(schema)) and ("type" in schema or not schema.keys() & _DECIDED - {*_WITHIN})


def _is_open(schema: Mapping[str, object]) -> bool:
    return bool(_kinds(schema)) and not schema.keys() & _DECIDED
