"""Finds schemas that exclude each other: no value has both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from quire.server.grammars.schemas.keywords import TYPES
from quire.server.grammars.schemas.literals import key_of, kind_of, literals_of
from quire.server.grammars.schemas.steps import Steps

MAX_DEPTH = 6
MAX_BRANCHES = 64
MAX_LITERALS = 256
"""Schemas that list more are not compared."""
_ALL = frozenset(TYPES)


class ValueOutline(NamedTuple):
    """The kinds of values that a schema may have, the values themselves where it lists them, and
    for objects the schemas of their properties and which of them must be there."""

    kinds: frozenset[str] = _ALL
    values: frozenset[str] | None = None
    properties: Mapping[str, object] = {}
    required: frozenset[str] = frozenset()
    is_closed: bool = False

    def and_(self, other: "ValueOutline") -> "ValueOutline":
        """Return the outline of values that have both."""
        values = self.values
        if values is not None and other.values is not None:
            values = values & other.values
        properties = {**other.properties, **self.properties}
        for name in self.properties.keys() & other.properties.keys():
            properties[name] = {"allOf": [self.properties[name], other.properties[name]]}
        return ValueOutline(
            self.kinds & other.kinds,
            other.values if values is None else values,
            properties,
            self.required | other.required,
            self.is_closed or other.is_closed,
        )


class Exclusion(NamedTuple):
    """Finds schemas that exclude each other. `resolve` returns what a schema that is a reference
    refers to, and None where it cannot be followed."""

    resolve: Callable[[Mapping[str, object]], object]
    steps: Steps

    def among(self, schemas: Sequence[object]) -> bool:
        """Return whether each of the schemas excludes all the others, as far as that is seen."""
        if len(schemas) > MAX_BRANCHES:
            return False
        outlines = [list(self._outlines(each, MAX_DEPTH)) for each in schemas]
        return all(
            self._exclude(one, other, MAX_DEPTH)
            for index, ones in enumerate(outlines)
            for others in outlines[index + 1 :]
            for one in ones
            for other in others
        )

    def _outlines(self, schema: object, depth: int) -> Iterator[ValueOutline]:
        """Yield outlines of which each value of a schema has one."""
        if schema is False:
            return
        if not isinstance(schema, dict) or depth == 0 or not self.steps.spend():
            yield ValueOutline()
            return
        own = [_own(schema)]
        self.steps.spend(len(own[0].properties) + len(own[0].required))
        if "$ref" in schema:
            own = self._both(own, self._outlines(self.resolve(schema), depth - 1))
        for each in _listed(schema.get("allOf")):
            own = self._both(own, self._outlines(each, depth - 1))
        for keyword in ("anyOf", "oneOf"):
            ways = _listed(schema.get(keyword))
            if ways:
                inner = (outline for each in ways for outline in self._outlines(each, depth - 1))
                own = self._both(own, inner)
        yield from own

    def _both(self, ones: list[ValueOutline], others: Iterator[ValueOutline]) -> list[ValueOutline]:
        """Return the outlines of values that have one of each; less is said where they are many."""
        listed = list(others)
        if len(ones) * len(listed) > MAX_BRANCHES:
            return ones
        sizes = (len(one.properties) + len(other.properties) for one in ones for other in listed)
        if not self.steps.spend(sum(sizes)):
            return ones
        return [one.and_(other) for one in ones for other in listed]

    def _exclude(self, one: ValueOutline, other: ValueOutline, depth: int) -> bool:
        kinds = one.kinds & other.kinds
        if not kinds:
            return True
        if one.values is not None and other.values is not None:
            return not one.values & other.values
        if kinds != {"object"} or depth == 0 or not self.steps.spend():
            return False
        names = one.required | other.required
        if not self.steps.spend(len(names)):
            return False
        for name in names:
            for owner, asking in ((one, other), (other, one)):
                lacks = owner.is_closed and name not in owner.properties
                if lacks and name in asking.required:
                    return True
            if name in one.properties and name in other.properties:
                pair = (one.properties[name], other.properties[name])
                if self._exclude_inner(*pair, depth - 1):
                    return True
        return False

    def _exclude_inner(self, one: object, other: object, depth: int) -> bool:
        return all(
            self._exclude(ours, theirs, depth)
            for ours in self._outlines(one, depth)
            for theirs in self._outlines(other, depth)
        )


def _listed(given: object) -> list[object]:
    return given if isinstance(given, list) else []


def _own(schema: Mapping[str, object]) -> ValueOutline:
    """Return the outline of what a schema says by itself."""
    kinds = _ALL
    given = schema.get("type")
    if isinstance(given, str | list):
        named = [given] if isinstance(given, str) else given
        kinds = frozenset("number" if each == "integer" else str(each) for each in named)
    values = literals_of(schema)
    keys = None
    if values is not None and len(values) <= MAX_LITERALS:
        values = [each for each in values if kind_of(each) in kinds]
        keys, kinds = frozenset(map(key_of, values)), frozenset(map(kind_of, values))
    properties, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return ValueOutline(
        kinds,
        keys,
        properties if isinstance(properties, dict) else {},
        frozenset(name for name in names if isinstance(name, str)),
        closed,
    )
