"""Schemas of all values that a schema does not have, where keywords can say that."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from quire.server.grammars.schemas.keywords import ANNOTATIONS, TYPES
from quire.server.grammars.schemas.literals import is_number, kind_of, literals_of
from quire.server.grammars.schemas.patterns import all_but
from quire.server.grammars.schemas.steps import Steps

RawSchema: TypeAlias = Mapping[str, object]
MAX_DEPTH = 8
MAX_ALTERNATIVES = 32
_BOUNDS = {
    "minimum": ("number", "exclusiveMaximum"),
    "maximum": ("number", "exclusiveMinimum"),
    "exclusiveMinimum": ("number", "maximum"),
    "exclusiveMaximum": ("number", "minimum"),
}
_COUNTS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}


class Negation(NamedTuple):
    """Says what a schema does not have. `resolve` returns what a schema that is a reference refers
    to, and None where it cannot be followed."""

    resolve: Callable[[RawSchema], object]
    steps: Steps
    depth: int = 0

    def of(self, schema: object) -> list[RawSchema | bool] | None:
        """Return schemas of which a value has one exactly where it has not `schema`, None where
        keywords cannot say that."""
        if isinstance(schema, bool):
            return [] if schema else [True]
        if not isinstance(schema, dict) or self.depth >= MAX_DEPTH or not self.steps.spend():
            return None
        inner, found = self._replace(depth=self.depth + 1), list[RawSchema | bool]()
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS:
                continue
            ways = inner._of_keyword(keyword, value, schema)
            if ways is None or len(found) + len(ways) > MAX_ALTERNATIVES:
                return None
            found += ways
        return found

    def _of_keyword(
        self, keyword: str, value: object, schema: RawSchema
    ) -> list[RawSchema | bool] | None:
        if keyword in _BOUNDS and is_number(value):
            kind, other = _BOUNDS[keyword]
            return [{"type": kind, other: value}]
        if keyword in _COUNTS and isinstance(value, int) and not isinstance(value, bool):
            kind, other, step = _COUNTS[keyword]
            return [{"type": kind, other: value + step}] if value + step >= 0 else []
        if keyword in ("const", "enum"):
            values = literals_of({keyword: value}) or []
            if not self.steps.spend(sum(len(str(each)) for each in values)):
                return None
            other_values = without_values(values)
            return None if other_values is None else [other_values]
        made = _WAYS.get(keyword)
        return None if made is None else made(self, value, schema)

    def of_type(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        kinds = [value] if isinstance(value, str) else value
        if not isinstance(kinds, list) or "integer" in kinds and "number" not in kinds:
            return None
        others = [kind for kind in TYPES if kind not in kinds]
        return [{"type": others}] if others else []

    def of_required(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            return None
        return [{"type": "object", "properties": {name: False}} for name in dict.fromkeys(value)]

    def of_properties(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        if not isinstance(value, dict):
            return None
        found = list[RawSchema | bool]()
        for name, each in value.items():
            ways = self.of(each)
            if ways is None:
                return None
            if ways:
                held = {"properties": {name: either(ways)}, "required": [name]}
                found.append({"type": "object", **held})
        return found

    def of_not(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        return [value] if isinstance(value, dict | bool) else None

    def of_any(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        if not isinstance(value, list):
            return None
        ways = [self.of(each) for each in value]
        if any(each is None for each in ways):
            return None
        return [{"allOf": [either(each) for each in ways if each is not None]}]

    def of_all(self, value: object, _: RawSchema) -> list[RawSchema | bool] | None:
        if not isinstance(value, list):
            return None
        found = list[RawSchema | bool]()
        for each in value:
            ways = self.of(each)
            if ways is None:
                return None
            found += ways
        return found

    def of_contains(self, value: object, schema: RawSchema) -> list[RawSchema | bool] | None:
        ways = self.of(value)
        if ways is None or schema.keys() & {"minContains", "maxContains"}:
            return None
        return [{"type": "array", "items": either(ways)}]

    def of_reference(self, _: object, schema: RawSchema) -> list[RawSchema | bool] | None:
        return self.of(self.resolve(schema))


_WAYS: Mapping[str, Callable[[Negation, object, RawSchema], list[RawSchema | bool] | None]] = {
    "type": Negation.of_type,
    "required": Negation.of_required,
    "properties": Negation.of_properties,
    "not": Negation.of_not,
    "anyOf": Negation.of_any,
    "allOf": Negation.of_all,
    "contains": Negation.of_contains,
    "$ref": Negation.of_reference,
}


def either(ways: Sequence[RawSchema | bool]) -> RawSchema | bool:
    """Return a schema of the values that have one of these."""
    if True in ways:
        return True
    if len(ways) == 1:
        return ways[0]
    return {"anyOf": list(ways)} if ways else False


def without_values(values: Iterable[object]) -> RawSchema | None:
    """Return a schema of all values but these, None where one of them is an array, an object or a
    number: then a schema cannot say that, whatever else a value may be."""
    kinds: dict[str, list[object]] = {}
    for value in values:
        kinds.setdefault(kind_of(value), []).append(value)
    made: dict[str, object] = {}
    excluded = set[str]()
    for kind, given in kinds.items():
        if kind == "string":
            pattern = all_but(each for each in given if isinstance(each, str))
            if pattern is None:
                return None
            made["pattern"] = pattern
        elif kind == "null" or (kind == "boolean" and len({bool(each) for each in given}) == 2):
            excluded.add(kind)
        elif kind == "boolean":
            others = [each for each in TYPES if each != "boolean"]
            made["anyOf"] = [{"enum": [not given[0]]}, {"type": others}]
        elif kind == "number":
            made["allOf"] = [_without_numbers([each for each in given if is_number(each)])]
        else:
            return None
    if excluded:
        made["type"] = [kind for kind in TYPES if kind not in excluded]
    return made


def _without_numbers(numbers: Sequence[object]) -> RawSchema:
    """Return a schema of all values but these numbers: of others, and of the numbers between."""
    given = sorted({each for each in numbers if isinstance(each, int | float)})
    bounds = [None, *given, None]
    ways = list[RawSchema]()
    for low, high in zip(bounds, bounds[1:], strict=False):
        way: dict[str, object] = {"type": "number"}
        if low is not None:
            way["exclusiveMinimum"] = low
        if high is not None:
            way["exclusiveMaximum"] = high
        ways.append(way)
    others = [kind for kind in TYPES if kind != "number"]
    return {"anyOf": [*ways, {"type": others}]}
