"""Keywords of objects, said by `properties`, `patternProperties`, `additionalProperties` and
`required`, and by as many properties as grammars can count.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb

from quire.server.grammars.schemas.literals import literals_of
from quire.server.grammars.schemas.patterns import are_disjoint, matches, plain_pattern
from quire.server.grammars.schemas.place import MadeSchema, SchemaPlace

MAX_NAMES = 512
MAX_PATTERNS = 16
COST_OF_NAME = 4
"""Each alternative names properties anew."""
STEPS_OF_MATCH = 4
MAX_COMBINED = 4
"""So many properties that may be there are counted each way they may, where others may be too."""
_APPLICATORS = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not"))


def rewrite_object(place: SchemaPlace) -> None:
    """Rewrite what a schema says of objects."""
    _unevaluated(place)
    _dependents(place)
    _patterns(place)
    _names(place)
    _counts(place)


def _unevaluated(place: SchemaPlace) -> None:
    """Say plainly what is not evaluated, where nothing else speaks of the properties or items: it
    is all that the schema does not name."""
    for keyword, plain in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if keyword not in place.keywords:
            continue
        if place.keywords[keyword] in (True, {}):
            place.take(keyword)
        elif plain in place.keywords and (plain != "items" or "prefixItems" not in place.keywords):
            place.take(keyword)
        elif place.keywords.keys() & _APPLICATORS or "contains" in place.keywords:
            place.lose(keyword)
        else:
            place.keywords[plain] = place.take(keyword)


def _dependents(place: SchemaPlace) -> None:
    """Rewrite what must be there, and how all must be, where a property is there."""
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        if keyword not in place.keywords:
            continue
        given = place.take(keyword)
        for name, needs in (given if isinstance(given, dict) else {}).items():
            if isinstance(needs, str):
                needs = [needs]
            there: dict[str, object] = {"required": [name]}
            if isinstance(needs, list):
                there["required"] = [name, *(each for each in needs if isinstance(each, str))]
            elif needs is True or needs == {}:
                continue
            else:
                there["allOf"] = [needs]
            place.offer([{"properties": {name: False}}, there], f"{keyword}.{name}")


def _names(place: SchemaPlace) -> None:
    """Say by properties and patterns which names they may have."""
    given = _resolved(place, "propertyNames")
    if given is None or given is True or given == {}:
        place.keywords.pop("propertyNames", None)
        return
    if given is False:
        place.take("propertyNames")
        place.keywords["maxProperties"] = 0
        return
    if isinstance(given, dict):
        names, pattern = literals_of(given), _name_pattern(given)
        others = given.keys() - {"enum", "const", "pattern", "minLength", "maxLength", "type"}
        is_all = given.get("type", "string") == "string" and not others - _SILENT
        if is_all and names is not None and pattern == "" and len(names) <= MAX_NAMES:
            place.take("propertyNames")
            _only_names(place, [name for name in names if isinstance(name, str)])
            return
        if is_all and names is None and pattern == "":
            place.take("propertyNames")
            return
        if is_all and names is None and pattern and _only_matching(place, pattern):
            place.take("propertyNames")
            return
    place.lose("propertyNames")


_SILENT = frozenset(("title", "description", "$comment", "examples", "default", "format"))


def _resolved(place: SchemaPlace, keyword: str) -> object:
    """Return the schema at a keyword, or what it refers to."""
    given = place.keywords.get(keyword)
    for _ in range(MAX_COMBINED):
        if not isinstance(given, dict) or given.keys() - _SILENT != {"$ref"}:
            break
        given = place.rewriting.resolve(given)
        if given is None:
            return {"$ref": ""}
    return given


def _name_pattern(given: Mapping[str, object]) -> str | None:
    """Return the pattern of names: empty where any will do, None where they have none that
    grammars can be made of."""
    least, most = given.get("minLength", 0), given.get("maxLength")
    has_length = bool(least) or most is not None
    pattern = given.get("pattern")
    if isinstance(pattern, str):
        return None if has_length else plain_pattern(pattern)
    return f"^[\\s\\S]{{{least},{'' if most is None else most}}}$" if has_length else ""


def _only_names(place: SchemaPlace, names: list[str]) -> None:
    """Let objects have properties of these names alone."""
    properties, patterns = _held(place, "properties"), _held(place, "patternProperties")
    others = place.keywords.get("additionalProperties", True)
    made: dict[str, object] = {}
    for name in names:
        speaking = (each for pattern, each in patterns.items() if matches(pattern, name))
        made[name] = properties[name] if name in properties else next(speaking, others)
    place.keywords.pop("patternProperties", None)
    place.keywords["properties"] = made
    place.keywords["additionalProperties"] = False


def _only_matching(place: SchemaPlace, pattern: str) -> bool:
    """Let the names of properties match a pattern; return whether that can be said."""
    properties, patterns = _held(place, "properties"), _held(place, "patternProperties")
    others = place.keywords.get("additionalProperties", True)
    if patterns and (others is not False or set(patterns) != {pattern}):
        return False
    place.keywords["properties"] = {
        name: each if matches(pattern, name) else False for name, each in properties.items()
    }
    place.keywords.setdefault("patternProperties", {pattern: others})
    place.keywords["additionalProperties"] = False
    return True


def _patterns(place: SchemaPlace) -> None:
    """Give each pattern names of its own: grammars hold a name to one schema."""
    given = _held(place, "patternProperties")
    if not given:
        place.keywords.pop("patternProperties", None)
        return
    place.take("patternProperties")
    known: dict[str, object] = {}
    for pattern, each in given.items():
        plain = plain_pattern(pattern)
        if plain is None:
            place.lose(f"patternProperties.{pattern}")
            _open(place)
        else:
            known[plain] = each
    properties = dict(_held(place, "properties"))
    for name, own in properties.items():
        speaking = [each for pattern, each in known.items() if _speaks(place, pattern, name)]
        others = [each for each in speaking if each != own and each is not True]
        if others:
            properties[name] = {"allOf": [own, *others]} if own is not True else {"allOf": others}
    if properties:
        place.keywords["properties"] = properties
    if known:
        place.keywords["patternProperties"] = _apart(place, known)


def _open(place: SchemaPlace) -> None:
    """Let there be more properties than are described, where some can no longer be."""
    if place.keywords.get("additionalProperties") is False:
        place.keywords.pop("additionalProperties")


def _speaks(place: SchemaPlace, pattern: str, name: str) -> bool:
    if not place.rewriting.steps.spend(STEPS_OF_MATCH):
        place.rewriting.lose(place.where("patternProperties"))
        return False
    return matches(pattern, name)


def _apart(place: SchemaPlace, given: Mapping[str, object]) -> dict[str, object]:
    """Return patterns of which no two match one name. Those that do become one, of which a value
    may be as either says."""
    if len(given) <= MAX_PATTERNS and are_disjoint(tuple(given)):
        return dict(given)
    groups: list[list[str]] = []
    for pattern in given if len(given) <= MAX_PATTERNS else ():
        apart = [group for group in groups if are_disjoint((pattern, _joined(group)))]
        meeting = [name for group in groups if group not in apart for name in group]
        groups = [*apart, [*meeting, pattern]]
    made: dict[str, object] = {}
    for group in groups or [list(given)]:
        ways = [given[pattern] for pattern in group]
        if len(group) > 1 and any(each != ways[0] for each in ways):
            for pattern in group[1:]:
                place.rewriting.lose(place.where(f"patternProperties.{pattern}"))
        made[_joined(group)] = ways[0] if all(each == ways[0] for each in ways) else _any(ways)
    return made


def _any(ways: Sequence[object]) -> object:
    return True if any(each is True for each in ways) else {"anyOf": list(ways)}


def _joined(group: Sequence[str]) -> str:
    """Return a pattern of the names that one of the patterns matches."""
    return group[0] if len(group) == 1 else "|".join(f"(?:{each})" for each in group)


def _counts(place: SchemaPlace) -> None:
    """Say by required properties how many there are, where others than these are counted too."""
    least, most = _count(place, "minProperties"), _count(place, "maxProperties")
    if least == 0:
        place.keywords.pop("minProperties", None)
        least = None
    if least is None and most is None:
        return
    properties, required = _held(place, "properties"), _required(place)
    optional = [
        name for name, each in properties.items() if name not in required and each is not False
    ]
    is_closed = place.keywords.get("additionalProperties") is False
    is_closed = is_closed and not _held(place, "patternProperties")
    if most is not None and is_closed and most >= len(required) + len(optional):
        place.keywords.pop("maxProperties")
        most = None
    wanted = 0 if least is None else least - len(required)
    if wanted <= 0:
        place.keywords.pop("minProperties", None)
    elif not is_closed and wanted > 1:
        # A name that is not given could come twice.
        place.lose("minProperties")
        place.keywords["minProperties"] = least = len(required) + 1
        wanted = 1
    if optional and (wanted > 0 or most is not None):
        spare = None if most is None else most - len(required)
        _combine(place, optional, wanted, spare, is_closed=is_closed)


def _combine(
    place: SchemaPlace, optional: list[str], wanted: int, spare: int | None, *, is_closed: bool
) -> None:
    """Say by alternatives which of the properties that may be there are, `wanted` of them at least
    and `spare` at most."""
    if is_closed and (wanted > len(optional) or (wanted <= 1 and spare in (None, 1))):
        return  # as grammars count by themselves, or find that nothing is valid
    ways: list[MadeSchema]
    always = _required(place)
    if not place.rewriting.values.spend((len(always) + len(optional)) * COST_OF_NAME):
        _lose_counts(place)
    elif spare is None and is_closed and comb(len(optional), wanted) <= place.room:
        place.take("minProperties")
        ways = [{"required": [*always, *names]} for names in combinations(optional, wanted)]
        place.offer(ways, "minProperties")
    elif spare is None and not is_closed and len(optional) < place.room:
        least = place.take("minProperties")
        ways = [{"required": [*always, name]} for name in optional]
        none = {"properties": dict.fromkeys(optional, False), "minProperties": least}
        place.offer([*ways, {**none, "required": always}], "minProperties")
    elif 2 ** len(optional) <= min(place.room, 2**MAX_COMBINED):
        bounds: dict[str, object] = {
            keyword: place.take(keyword)
            for keyword in ("minProperties", "maxProperties")
            if keyword in place.keywords
        }
        ways = [
            {
                "required": [*always, *chosen],
                "properties": {name: False for name in optional if name not in chosen},
                **bounds,
            }
            for size in range(len(optional) + 1)
            for chosen in combinations(optional, size)
            if (spare is None or size <= spare) and (not is_closed or size >= wanted)
        ]
        place.offer(ways, "maxProperties" if "maxProperties" in bounds else "minProperties")
    else:
        _lose_counts(place)


def _lose_counts(place: SchemaPlace) -> None:
    for keyword in ("minProperties", "maxProperties"):
        if keyword in place.keywords:
            place.lose(keyword)


def _count(place: SchemaPlace, keyword: str) -> int | None:
    given = place.keywords.get(keyword)
    return int(given) if isinstance(given, int | float) else None


def _required(place: SchemaPlace) -> list[str]:
    given = place.keywords.get("required")
    names = given if isinstance(given, list) else []
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _held(place: SchemaPlace, keyword: str) -> Mapping[str, object]:
    given = place.keywords.get(keyword)
    return given if isinstance(given, dict) else {}
