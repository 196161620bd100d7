"""Makes of a client's schema the schema that a grammar is made of.

Keywords that llguidance does not enforce are rewritten to those that it does
(https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md). What cannot be is
refused where the client asks for `strict`, and else left out at its place alone.
"""

import json
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from quire.server.grammars.schemas.arrays import rewrite_array
from quire.server.grammars.schemas.conditions import rewrite_conditions
from quire.server.grammars.schemas.cycles import Cycles
from quire.server.grammars.schemas.endless import can_end
from quire.server.grammars.schemas.keywords import (
    KNOWN,
    NOT_ENFORCED,
    PLAIN,
    SAYING,
    SCHEMA_MAPS,
    SCHEMAS,
    SchemaNode,
)
from quire.server.grammars.schemas.literals import is_number
from quire.server.grammars.schemas.objects import rewrite_object
from quire.server.grammars.schemas.patterns import is_string_enforced, plain_pattern
from quire.server.grammars.schemas.place import MAX_WAYS, MadeSchema, Rewriting, SchemaPlace
from quire.server.grammars.schemas.references import MAX_PATH_CHARS, invalid
from quire.server.grammars.schemas.shapes import check_shapes
from quire.server.suggestion import closest

MAX_KEPT, MAX_KEPT_CHARS = 128, 64 * 1024
"""So many schemas are kept once they are made, of so many characters at most."""
MAX_WARNED = 8
"""So many keywords without effect are named."""
MAX_MULTIPLE = 10_000
"""An expression for the multiples of so large a number takes 35 ms to build, and 3 MB."""
FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
)
"""Formats that are enforced. All others are annotations, as JSON Schema says."""
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NUMBERS = frozenset((*_COUNTS, *_BOUNDS))
MAX_BOUND = 10**17
"""Expressions of numbers have no bounds beyond: a wider range is cut to this one."""
_STRING = ("pattern", "format", "minLength", "maxLength")


@dataclass(frozen=True, slots=True)
class SchemaTerms:
    """The terms on which a schema is made: where they are `strict`, what cannot be enforced is
    refused. `coarse` ones do without alternatives, and without references that would be written out
    again and again: what a grammar cannot hold otherwise, it holds to them."""

    strict: bool = False
    coarse: bool = False


@dataclass(frozen=True, slots=True)
class EnforceableSchema:
    """A schema that grammars can be made of; all its references begin with `#/$defs/`, but for
    those to the whole. `loosened` are the paths of the client's keywords that it says nothing of,
    and of `warnings` the client is told."""

    schema: Mapping[str, object]
    loosened: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def enforceable(
    schema: Mapping[str, object], field: str, terms: SchemaTerms, *, names_root: bool = False
) -> EnforceableSchema:
    """Return the schema that a grammar of a client's schema is made of. Raises RequestError for a
    schema that is none, references that lead nowhere, a schema of which no value can end, and,
    on strict terms, for what would not be enforced or says nothing. What was made is kept for a
    while, since agents send the same tools with every turn.

    field: the path of the schema itself.
    names_root: references to the whole begin with `#/$defs/` too.
    """
    text = json.dumps(schema)
    if len(text) > MAX_KEPT_CHARS:
        return _make(schema, field, terms, names_root)
    kept = _kept(text, field, terms, names_root)
    return replace(kept.said, schema=json.loads(kept.text))


class _Kept(NamedTuple):
    """A schema that was made, as JSON, and what is said of it."""

    text: str
    said: EnforceableSchema


@lru_cache(MAX_KEPT)
def _kept(text: str, field: str, terms: SchemaTerms, names_root: bool) -> _Kept:
    made = _make(json.loads(text), field, terms, names_root)
    return _Kept(json.dumps(made.schema), replace(made, schema={}))


def _make(
    schema: Mapping[str, object], field: str, terms: SchemaTerms, names_root: bool
) -> EnforceableSchema:
    made = _Pass(schema, field, terms, names_root=names_root)
    enforced = made.run()
    if not can_end(enforced):
        raise invalid(field, "a value of it can never end, since it always holds another")
    return EnforceableSchema(enforced, tuple(made.rewriting.loosened), made.warnings)


class _Pass:
    """The pass over one schema. What is referred to is made once, under a name."""

    def __init__(
        self, root: Mapping[str, object], field: str, terms: SchemaTerms, *, names_root: bool
    ) -> None:
        self._names_root = names_root
        self.rewriting = Rewriting(root, field, strict=terms.strict)
        self._root = SchemaNode(root, field)
        self._terms = terms
        self._room = 0 if terms.coarse else MAX_WAYS
        self._names: dict[int, str] = {}
        self._waiting: deque[tuple[str, SchemaNode]] = deque()
        self._widths: dict[int, int] = {}
        self._cycles = Cycles(self.rewriting)
        self._written_out: set[int] | None = set()
        """Ids of schemas that are written out around a place; None where the value there has no
        name by which it would be known again."""
        self._unknown: list[str] = []
        self._common = 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence of the keywords that say nothing, if there are any."""
        if not self._unknown:
            return ()
        shown = ", ".join(self._unknown[:MAX_WARNED])
        return (f"keywords of the schema without effect: {shown}",)

    def run(self) -> Mapping[str, object]:
        """Return the whole schema."""
        root = self._made(self._root, self._room)
        assert isinstance(root, dict)
        made: dict[str, object] = {}
        while self._waiting:
            name, node = self._waiting.popleft()
            self._written_out = set()
            made[name] = self._made(node, self._room)
        return {**root, "$defs": made} if made else root

    def _held(self, node: SchemaNode) -> MadeSchema:
        """Return the schema of a value within another. It has a name where it would be written out
        again within itself."""
        if isinstance(node.schema, dict) and self._cycles.meets(node.schema):
            path = self.rewriting.path_of(node.schema, node.path)
            return {"$ref": f"#/$defs/{self._name(SchemaNode(node.schema, path))}"}
        around, self._written_out = self._written_out, None
        made = self._made(node, self._room)
        self._written_out = around
        return made

    def _made(self, node: SchemaNode, room: int, *, is_alone: bool = True) -> MadeSchema:
        """Return a schema. Where it `is_alone` nothing else is said of the same value."""
        path = self.rewriting.path_of(node.schema, node.path)
        if isinstance(node.schema, bool):
            return node.schema
        if not isinstance(node.schema, dict):
            raise invalid(path, "must be a schema, an object or a boolean")
        check_shapes(node.schema, path)
        self.rewriting.values.spend()
        place = SchemaPlace(SchemaNode(node.schema, path), self.rewriting, room)
        self._keep_known(place)
        if not place.keywords.keys() <= PLAIN:
            self._rewrite(place)
        written_out = self._refer(place, node.schema, is_alone=is_alone)
        made = self._with_inner(place, is_alone=is_alone)
        if self._written_out is not None:
            self._written_out -= written_out
        self._widths[id(made)] = self._width(made)
        return made

    def _rewrite(self, place: SchemaPlace) -> None:
        """Say by keywords that grammars are made of what others say."""
        self._follow_dynamic(place)
        _new_numbers(place)
        rewrite_array(place)
        rewrite_object(place)
        rewrite_conditions(place)
        _strings(place)
        self._multiple(place)

    def _keep_known(self, place: SchemaPlace) -> None:
        """Leave out what says nothing of values."""
        if self.rewriting.references.stand_alone and "$ref" in place.keywords:
            place.keywords = {"$ref": place.keywords["$ref"]}
        for keyword in list(place.keywords):
            if keyword in NOT_ENFORCED:
                place.lose(keyword)
            elif keyword not in SAYING:
                place.keywords.pop(keyword)
                if keyword not in KNOWN and (
                    not keyword.startswith("x-") or keyword == "x-guidance"
                ):
                    self._note_unknown(keyword, place.where(keyword)[:MAX_PATH_CHARS])

    def _note_unknown(self, keyword: str, path: str) -> None:
        if self._terms.strict:
            meant = closest(keyword, SAYING)
            hint = "" if meant is None else f"; did you mean '{meant}'?"
            raise invalid(path, f"is no keyword of JSON schemas, which 'strict' asks for{hint}")
        self._unknown.append(ascii(path))

    def _follow_dynamic(self, place: SchemaPlace) -> None:
        """Take a dynamic reference for a plain one where it can lead to one place alone."""
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword not in place.keywords:
                continue
            is_fixed = self.rewriting.references.is_fixed(place.keywords, keyword)
            if is_fixed and "$ref" not in place.keywords:
                place.keywords["$ref"] = place.keywords.pop(keyword)
            else:
                place.lose(keyword)

    def _multiple(self, place: SchemaPlace) -> None:
        """Lose a divisor that would make an expression of too many states, which are as many as the
        least common multiple of all that a value must be a multiple of."""
        divisor = place.keywords.get("multipleOf")
        if not is_number(divisor):
            return
        common = math.lcm(self._common, _coefficient(divisor))
        if common > MAX_MULTIPLE:
            place.lose("multipleOf")
        else:
            self._common = common

    def _refer(
        self, place: SchemaPlace, holder: Mapping[str, object], *, is_alone: bool
    ) -> set[int]:
        """Let a reference lead to the name of what it refers to; a schema that holds itself is
        written out where it meets other keywords. Return what is written out."""
        if "$ref" not in place.keywords:
            return set()
        found = self.rewriting.references.find(place.keywords["$ref"], holder, place.where("$ref"))
        if found is None:
            place.lose("$ref")
        elif not (is_alone and len(place.keywords) == 1) and self._cycles.holds_itself(
            found.schema
        ):
            key, around = id(found.schema), self._written_out
            is_cut = self._terms.coarse or not self.rewriting.values.spend(0)
            if around is None or key in around or is_cut:
                place.lose("$ref")
                return set()
            place.keywords.pop("$ref")
            self.rewriting.put(found.schema, found.path)
            place.keywords["allOf"] = [found.schema, *place.listed("allOf")]
            around.add(key)
            return {key}
        elif found.schema is self._root.schema and not self._names_root:
            place.keywords["$ref"] = "#"
        else:
            place.keywords["$ref"] = f"#/$defs/{self._name(found)}"
        return set()

    def _name(self, node: SchemaNode) -> str:
        """Return the name of what is referred to, which is made later on."""
        name = self._names.get(id(node.schema))
        if name is None:
            given = _UNNAMED.sub("_", node.path.rpartition(".")[2])[:64]
            name = given if given not in self._names.values() else f"{given}.{len(self._names)}"
            self._names[id(node.schema)] = name
            self._waiting.append((name, node))
        return name

    def _with_inner(self, place: SchemaPlace, *, is_alone: bool) -> Mapping[str, object]:
        """Return what is left of a schema, with what stands in it made."""
        made: dict[str, object] = {}
        for keyword, value in place.keywords.items():
            where = place.where(keyword)
            if keyword in SCHEMA_MAPS and isinstance(value, dict):
                made[keyword] = {
                    name: self._held(SchemaNode(each, f"{where}.{name}"))
                    for name, each in value.items()
                }
            elif keyword == "prefixItems" and isinstance(value, list):
                made[keyword] = [
                    self._held(SchemaNode(each, f"{where}[{index}]"))
                    for index, each in enumerate(value)
                ]
            elif keyword in ("allOf", "anyOf") and isinstance(value, list):
                stays = is_alone and len(place.keywords) == 1
                stays = stays and (keyword == "anyOf" or len(value) == 1)
                made[keyword] = self._listed(SchemaNode(value, where), place.room, is_alone=stays)
            elif keyword in SCHEMAS:
                made[keyword] = self._held(SchemaNode(value, where))
            else:
                made[keyword] = value
        every = made.pop("allOf", None)  # last: properties come in the order of the schema's own
        return made if every is None else {**made, "allOf": every}

    def _listed(self, node: SchemaNode, room: int, *, is_alone: bool) -> list[MadeSchema]:
        """Return the schemas of a list. The alternatives of each in `allOf` meet those of the
        others; branches share the room of the whole."""
        assert isinstance(node.schema, list)
        is_every = node.path.endswith(".allOf")
        if not is_every:
            room //= max(1, len(node.schema))
        listed: list[MadeSchema] = []
        for index, each in enumerate(node.schema):
            where = f"{node.path}[{index}]"
            made = self._made(SchemaNode(each, where), room, is_alone=is_alone)
            if is_every:
                room //= self._widths.get(id(made), 1)
            listed.append(made)
        return listed

    def _width(self, made: Mapping[str, object]) -> int:
        """Return how many alternatives a schema has once all of them are written out."""
        width, ways, every = 1, made.get("anyOf"), made.get("allOf")
        for each in every if isinstance(every, list) else ():
            width *= self._widths.get(id(each), 1)
        if isinstance(ways, list):
            width *= sum(self._widths.get(id(each), 1) for each in ways)
        return max(1, width)


def _new_numbers(place: SchemaPlace) -> None:
    """Say bounds as newer drafts do, and counts as integers."""
    if _NUMBERS.isdisjoint(place.keywords):
        return
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(place.keywords.get(keyword), bool):
            is_exclusive = place.keywords.pop(keyword)
            if is_exclusive and bound in place.keywords:
                place.keywords[keyword] = place.keywords.pop(bound)
    for keyword in _BOUNDS:
        given = place.keywords.get(keyword)
        if not is_number(given) or abs(given) <= MAX_BOUND:
            continue
        if (given > 0) == keyword.lower().endswith("maximum"):
            place.keywords[keyword] = MAX_BOUND if given > 0 else -MAX_BOUND
        else:
            place.lose(keyword)
    for keyword in _COUNTS:
        given = place.keywords.get(keyword)
        if isinstance(given, float):
            place.keywords[keyword] = int(given)


def _strings(place: SchemaPlace) -> None:
    """Leave out formats that are annotations, and patterns that grammars cannot be made of."""
    if place.keywords.get("format", "date") not in FORMATS:
        place.take("format")
    given = place.keywords.get("pattern")
    if isinstance(given, str):
        plain = plain_pattern(given)
        if plain is None:
            place.lose("pattern")
        else:
            place.keywords["pattern"] = plain
    for keyword in _STRING:
        said = {each: place.keywords[each] for each in _STRING if each in place.keywords}
        if len(said) < 2 or is_string_enforced(json.dumps({"type": "string", **said})):
            return
        if keyword in said:
            place.lose(keyword)


def _coefficient(number: float) -> int:
    """Return a number as an integer, times the least power of ten that makes it one."""
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    scale: int = 10 ** max(exponent, 0)
    return int("".join(map(str, digits))) * scale
