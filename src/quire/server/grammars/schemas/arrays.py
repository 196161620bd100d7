"""Keywords of arrays, said by `prefixItems`, `items` and by arrays that are listed."""

from collections.abc import Iterator
from itertools import combinations, permutations

from quire.server.grammars.schemas.keywords import TYPES
from quire.server.grammars.schemas.literals import literals_of
from quire.server.grammars.schemas.place import MadeSchema, SchemaPlace

MAX_PERMUTED = 4
"""Arrays of different ones of so many values are listed in any order, 65 at most."""
MAX_ORDERED = 6
"""Arrays of so many values are listed in one order, 64 at most."""
MAX_LISTED_CHARS = 1000
CONTAINED_AT = 4
"""So many first items may be what an array contains."""
_NO_ARRAYS = [kind for kind in TYPES if kind != "array"]


def rewrite_array(place: SchemaPlace) -> None:
    """Rewrite what a schema says of arrays."""
    _old_items(place)
    _unique(place)
    _contains(place)


def _old_items(place: SchemaPlace) -> None:
    """Say as newer drafts do how the first items must be, and how all others."""
    items = place.keywords.get("items")
    if isinstance(items, list):
        place.keywords["prefixItems"] = place.take("items")
        if "additionalItems" in place.keywords:
            place.keywords["items"] = place.take("additionalItems")
    else:
        place.keywords.pop("additionalItems", None)
    if place.keywords.get("prefixItems") == []:
        place.keywords.pop("prefixItems")


def _unique(place: SchemaPlace) -> None:
    """List the arrays of different items, where the items are of few values."""
    if not place.keywords.get("uniqueItems"):
        place.keywords.pop("uniqueItems", None)
        return
    most = place.keywords.get("maxItems")
    if isinstance(most, int | float) and most <= 1:
        place.take("uniqueItems")
        return
    values = None
    if "prefixItems" not in place.keywords and not place.keywords.keys() & {"contains", "enum"}:
        values = _values(place, place.keywords.get("items"))
    is_short = values is not None and len(str(values)) <= MAX_LISTED_CHARS
    if values is None or len(values) > MAX_ORDERED or not is_short:
        place.lose("uniqueItems")
        return
    least = place.keywords.get("minItems", 0)
    listed = [
        each
        for each in _arrays(values)
        if (not isinstance(least, int | float) or len(each) >= least)
        and (not isinstance(most, int | float) or len(each) <= most)
    ]
    for keyword in ("uniqueItems", "items", "minItems", "maxItems"):
        place.take(keyword)
    if place.kinds == {"array"}:
        place.keywords["enum"] = listed
    else:
        place.add({"anyOf": [{"enum": listed}, {"type": _NO_ARRAYS}]}, "uniqueItems")


def _arrays(values: list[object]) -> Iterator[list[object]]:
    """Yield arrays without two of the same values."""
    choose = permutations if len(values) <= MAX_PERMUTED else combinations
    for length in range(len(values) + 1):
        yield from (list(each) for each in choose(values, length))


def _values(place: SchemaPlace, schema: object) -> list[object] | None:
    """Return the values that a schema has if they are few, else None."""
    for _ in range(CONTAINED_AT):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = place.rewriting.resolve(schema)
    if not isinstance(schema, dict):
        return None
    said = schema.keys() & {"enum", "const", "type"}
    others = schema.keys() - said - {"title", "description", "default", "$comment"}
    if others:
        return None
    values, kind = literals_of(schema), schema.get("type")
    if values is None:
        plain: dict[str, list[object]] = {"boolean": [False, True], "null": [None]}
        return plain.get(kind) if isinstance(kind, str) else None
    return values if kind in (None, "string") and _fit(values, kind) else None


def _fit(values: list[object], kind: object) -> bool:
    return kind is None or all(isinstance(each, str) for each in values)


def _contains(place: SchemaPlace) -> None:
    """Let one of the first items be what an array must contain."""
    least, most = place.keywords.pop("minContains", 1), place.keywords.pop("maxContains", None)
    if "contains" not in place.keywords:
        return
    if most is not None:
        place.rewriting.lose(place.where("maxContains"))
    if least == 0 or place.keywords["contains"] in (True, {}):
        count = place.take("contains") is not None and least
        if isinstance(count, int) and count > 0:
            place.keywords["minItems"] = max(count, _number(place, "minItems"))
        return
    items = place.keywords.get("items", True)
    if "prefixItems" in place.keywords or not isinstance(least, int) or least > CONTAINED_AT:
        place.lose("contains")
        return
    wanted = place.take("contains")
    both = {"allOf": [items, wanted]} if items is not True else wanted
    last = 1 if least > 1 else CONTAINED_AT
    most_items = _number(place, "maxItems", default=last + least)
    places = range(max(1, min(last, most_items - least + 1)))
    ways: list[MadeSchema] = [
        {
            "type": "array",
            "prefixItems": [*[items] * before, *[both] * least],
            **_at_least(before + least),
        }
        for before in places
    ]
    if place.kinds != {"array"}:
        ways.append({"type": _NO_ARRAYS})
    place.offer(ways, "contains")


def _at_least(count: int) -> dict[str, object]:
    return {"minItems": count}


def _number(place: SchemaPlace, keyword: str, default: int = 0) -> int:
    given = place.keywords.get(keyword)
    return int(given) if isinstance(given, int | float) else default
