"""Schemas that hold themselves, by way of references."""

from collections.abc import Iterator, Mapping

from quire.server.grammars.schemas.keywords import inner_schemas
from quire.server.grammars.schemas.place import Rewriting
from quire.server.grammars.schemas.steps import Steps

MAX_VISITS = 40_000
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("if", "then", "else", "not")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Cycles:
    """Finds the schemas that hold themselves. A grammar can refer to such a schema where it stands
    alone; where it must meet other keywords, it is written out."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._rewriting = rewriting
        self._known: dict[int, bool] = {}
        self._held: dict[int, list[object]] = {}
        self._visits = Steps(MAX_VISITS)

    def holds_itself(self, schema: object) -> bool:
        """Return whether a schema is somewhere within itself."""
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = self._finds_itself(schema)
        return known

    def _finds_itself(self, schema: object) -> bool:
        waiting, seen = [schema], {id(schema)}
        while waiting and self._visits.spend():
            each = waiting.pop()
            if not isinstance(each, dict):
                continue
            held = self._held.get(id(each))
            if held is None:
                held = [node.schema for node in inner_schemas(each, "")] + self._target(each)
                self._held[id(each)] = held
            for inner in held:
                if inner is schema:
                    return True
                if id(inner) not in seen:
                    seen.add(id(inner))
                    waiting.append(inner)
        return False

    def _target(self, schema: Mapping[str, object]) -> list[object]:
        return [self._rewriting.resolve(schema)] if "$ref" in schema else []

    def meets(self, schema: Mapping[str, object]) -> bool:
        """Return whether a schema that holds itself meets other keywords at this place."""
        if not schema.keys() - {*_REFERENCES, "title", "description", "$comment", "default"}:
            return False
        return any(map(self.holds_itself, self._in_place(schema)))

    def _in_place(self, schema: Mapping[str, object]) -> Iterator[object]:
        """Yield what is referred to for the same value."""
        waiting: list[object] = [schema]
        while waiting and self._visits.spend():
            each = waiting.pop()
            if not isinstance(each, dict):
                continue
            yield from self._target(each)
            for keyword in _IN_PLACE_LISTS:
                listed = each.get(keyword)
                waiting += listed if isinstance(listed, list) else []
            waiting += [each[keyword] for keyword in _IN_PLACE if keyword in each]
