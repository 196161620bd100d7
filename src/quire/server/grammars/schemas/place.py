"""A place in a schema that is being rewritten to what grammars can be made of."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from quire.server.errors import RequestError
from quire.server.grammars.schemas.exclusion import Exclusion
from quire.server.grammars.schemas.keywords import SchemaNode
from quire.server.grammars.schemas.negation import Negation, either
from quire.server.grammars.schemas.references import MAX_PATH_CHARS, References
from quire.server.grammars.schemas.steps import Steps

MadeSchema: TypeAlias = Mapping[str, object] | bool
MAX_WAYS = 64
"""So many combinations of alternatives may be made at one place: grammars hold each of them."""
LEAST_STEPS, STEPS_A_VALUE = 2000, 10
LEAST_MADE, MADE_A_VALUE = 512, 2
"""So many schemas are made of one with so many values before no more alternatives are."""


class Rewriting:
    """The rewriting of one schema: what is found out about all of it.

    strict: what cannot be enforced is refused; else it is left out, and its path is `loosened`.
    """

    def __init__(self, root: Mapping[str, object], field: str, *, strict: bool) -> None:
        self.loosened: dict[str, None] = {}
        self.strict = strict
        self.references = References(root, field)
        num_values = _num_values(root)
        self.steps = Steps(LEAST_STEPS + STEPS_A_VALUE * num_values)
        self.values = Steps(LEAST_MADE + MADE_A_VALUE * num_values)
        self.negation = Negation(self.resolve, self.steps)
        self.exclusion = Exclusion(self.resolve, self.steps)
        self._paths: dict[int, str] = {}
        self._kept: list[object] = []

    def resolve(self, holder: Mapping[str, object]) -> object:
        """Return what the reference of a schema refers to, None where it cannot be followed."""
        try:
            found = self.references.follow(holder, "")
        except RequestError:
            return None
        return None if found is None else found.schema

    def lose(self, path: str) -> None:
        """Note a keyword that is not enforced. Raises RequestError where that was promised."""
        shown = path[:MAX_PATH_CHARS]
        if self.strict:
            raise RequestError(
                f"'{shown}' is a keyword that cannot be enforced here; without 'strict' it is left "
                "out, and the answer is checked.",
                param=shown,
                code="unsupported_parameter",
            )
        self.loosened.setdefault(shown)

    def put(self, schema: object, path: str) -> None:
        """Note the path of a schema that is moved."""
        self._paths.setdefault(id(schema), path)
        self._kept.append(schema)

    def path_of(self, schema: object, path: str) -> str:
        """Return the path at which a schema stood, `path` where it was not moved."""
        return self._paths.get(id(schema), path)


class SchemaPlace:
    """A schema in the making. `keywords` are those that are left of it, in their order; each part
    of the pass takes those that it rewrites.

    room: combinations of alternatives that may yet be made here.
    """

    def __init__(self, node: SchemaNode, rewriting: Rewriting, room: int) -> None:
        assert isinstance(node.schema, dict)
        self.keywords: dict[str, object] = dict(node.schema)
        self.path = node.path
        self.rewriting = rewriting
        self.room = room
        rewriting.references.adopt(self.keywords, node.schema)
        rewriting.put(self.keywords, node.path)

    def where(self, keyword: str) -> str:
        """Return the path of a keyword."""
        return f"{self.path}.{keyword}"

    def take(self, keyword: str) -> object:
        """Return the value of a keyword, which is not left then; None where there is none. A schema
        in it keeps its path."""
        value = self.keywords.pop(keyword, None)
        self._put(value, self.where(keyword))
        return value

    def _put(self, value: object, path: str) -> None:
        if isinstance(value, dict):
            self.rewriting.put(value, path)
            for name, each in value.items():
                if isinstance(each, dict):
                    self.rewriting.put(each, f"{path}.{name}")
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, dict):
                    self.rewriting.put(each, f"{path}[{index}]")

    def lose(self, keyword: str) -> None:
        """Leave a keyword out that cannot be enforced. Raises RequestError where that was
        promised."""
        self.keywords.pop(keyword, None)
        self.rewriting.lose(self.where(keyword))

    def add(self, schema: MadeSchema, keyword: str) -> None:
        """Say by a schema what `keyword` said."""
        if schema is True:
            return
        if isinstance(schema, dict):
            self.rewriting.put(schema, self.where(keyword))
        self.keywords["allOf"] = [*self.listed("allOf"), schema]

    def offer(self, ways: Sequence[MadeSchema], keyword: str) -> None:
        """Say by alternatives what `keyword` said. It is lost where they would be too many."""
        if len(ways) > self.room or not self.rewriting.values.spend(len(ways)):
            self.lose(keyword)
            return
        self.room //= max(len(ways), 1)
        for each in ways:
            if isinstance(each, dict):
                self.rewriting.put(each, self.where(keyword))
        self.add(either(ways), keyword)

    def listed(self, keyword: str) -> list[object]:
        """Return the list at a keyword, empty where there is none."""
        given = self.keywords.get(keyword)
        return given if isinstance(given, list) else []

    @property
    def kinds(self) -> set[str] | None:
        """The types that the values may have, None where the schema does not say it."""
        given = self.keywords.get("type")
        if isinstance(given, str):
            return {given}
        return {str(each) for each in given} if isinstance(given, list) else None


def _num_values(root: object) -> int:
    """Return how many values a schema holds."""
    waiting, num_values = [root], 0
    while waiting:
        value = waiting.pop()
        num_values += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return num_values
