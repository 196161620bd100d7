"""Keywords that say of schemas whether a value has them: `not`, `if` and `oneOf`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quire.server.grammars.schemas.keywords import ANNOTATIONS
from quire.server.grammars.schemas.literals import key_of, literals_of
from quire.server.grammars.schemas.negation import either
from quire.server.grammars.schemas.place import MadeSchema, SchemaPlace

MAX_NEGATED = 4
"""So many branches are told from one another by what each is not."""
_CONDITION = ("if", "then", "else")


def rewrite_conditions(place: SchemaPlace) -> None:
    """Rewrite what a schema says by others that a value has or has not."""
    _not(place)
    _cases(place)
    _if(place)
    _one_of(place)


def _not(place: SchemaPlace) -> None:
    if "not" not in place.keywords:
        return
    given = place.keywords["not"]
    values = literals_of(place.keywords)
    if values is not None and isinstance(given, dict) and given.keys() - ANNOTATIONS <= _LISTS:
        excluded = set(map(key_of, literals_of(given) or []))
        if given.keys() & _LISTS:
            place.take("not")
            place.keywords.pop("const", None)
            place.keywords["enum"] = [each for each in values if key_of(each) not in excluded]
            return
    ways = place.rewriting.negation.of(given)
    if ways is None:
        place.lose("not")
        return
    place.take("not")
    place.offer(_of_kinds(place, ways), "not")


_LISTS = frozenset(("enum", "const"))


def _of_kinds(place: SchemaPlace, ways: Sequence[MadeSchema]) -> list[MadeSchema]:
    """Return the ways that a value of the place's types may be of."""
    kinds = place.kinds
    return [each for each in ways if kinds is None or _may_be(each, kinds)]


def _may_be(way: MadeSchema, kinds: set[str]) -> bool:
    given = way.get("type") if isinstance(way, dict) else None
    every = way.get("allOf") if isinstance(way, dict) else None
    if isinstance(every, list) and not all(_may_be(each, kinds) for each in every):
        return False
    if given is None:
        return way is not False
    named = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
    return bool(named & kinds) or ("integer" in kinds and "number" in named)


def _if(place: SchemaPlace) -> None:
    """Say of a condition that it holds, and what follows, or that it does not."""
    if "if" not in place.keywords:
        for keyword in ("then", "else"):
            place.keywords.pop(keyword, None)
        return
    condition = place.keywords["if"]
    then, otherwise = place.keywords.get("then", True), place.keywords.get("else", True)
    if then is True and otherwise is True:
        for keyword in _CONDITION:
            place.keywords.pop(keyword, None)
        return
    ways = place.rewriting.negation.of(condition)
    if ways is None:
        for keyword in ("then", "else"):
            place.keywords.pop(keyword, None)
        place.lose("if")
        return
    for keyword in _CONDITION:
        place.take(keyword)
    unmet = _of_kinds(place, ways)
    place.room //= max(1, len(unmet))
    place.offer([_all(condition, then), _all(either(unmet), otherwise)], "if")


def _all(*schemas: object) -> MadeSchema:
    """Return a schema of the values that have all of these."""
    if False in [each for each in schemas if isinstance(each, bool)]:
        return False
    given = [each for each in schemas if isinstance(each, dict) and each]
    if len(given) == 1:
        return given[0]
    return {"allOf": given} if given else True


class Case(NamedTuple):
    """A condition that a property has one of some values, by which `keys` know them, and what
    follows. Where the property `is_required` it does not hold without it, and where the type
    `is_said` it does not hold of what is no object."""

    name: str
    values: tuple[object, ...]
    keys: frozenset[str]
    is_required: bool
    is_said: bool
    then: object
    otherwise: object


def _cases(place: SchemaPlace) -> None:
    """Join conditions on the values of one property: each value has what follows from all of
    them."""
    every = place.keywords.get("allOf")
    holders = [each for each in every if _is_condition(each)] if isinstance(every, list) else []
    cases = [(holder, case) for holder in holders if (case := _case(holder)) is not None]
    names = [case.name for _, case in cases]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            _join(place, [(holder, case) for holder, case in cases if case.name == name])


def _is_condition(schema: object) -> bool:
    return isinstance(schema, dict) and "if" in schema and not schema.keys() - _ALONE


_ALONE = frozenset(_CONDITION) | ANNOTATIONS


def _case(holder: Mapping[str, object]) -> Case | None:
    condition = holder["if"]
    if not isinstance(condition, dict):
        return None
    said = condition.keys() - ANNOTATIONS
    properties, required = condition.get("properties"), condition.get("required", [])
    if not said <= {"properties", "required", "type"} or not isinstance(properties, dict):
        return None
    if condition.get("type", "object") != "object" or len(properties) != 1:
        return None
    ((name, tested),) = properties.items()
    values = literals_of(tested) if isinstance(tested, dict) else None
    is_plain = values is not None and tested.keys() - ANNOTATIONS - {"type"} <= _LISTS
    if not is_plain or values is None or required not in ([], [name]):
        return None
    return Case(
        name,
        tuple(values),
        frozenset(map(key_of, values)),
        required == [name],
        "type" in condition,
        holder.get("then", True),
        holder.get("else", True),
    )


def _join(place: SchemaPlace, cases: list[tuple[Mapping[str, object], Case]]) -> None:
    """Say for each value of a property, for all others and for objects without it what follows."""
    name, holders = cases[0][1].name, {id(holder) for holder, _ in cases}
    literals = {key_of(value): value for _, case in cases for value in case.values}
    others = place.rewriting.negation.of({"enum": list(literals.values())})
    every = place.keywords["allOf"]
    if others is None or len(literals) + 3 > place.room or not isinstance(every, list):
        return
    place.take("allOf")
    for index, holder in enumerate(every):
        for keyword in _CONDITION:
            if id(holder) in holders and keyword in holder:
                where = f"{place.where('allOf')}[{index}].{keyword}"
                place.rewriting.put(holder[keyword], where)
    kept = [each for each in every if id(each) not in holders]
    if kept:
        place.keywords["allOf"] = kept
    ways = _ways(name, literals, either(others), [case for _, case in cases])
    place.offer(_of_kinds(place, ways), "allOf")


def _ways(
    name: str, literals: Mapping[str, object], others: MadeSchema, cases: list[Case]
) -> list[MadeSchema]:
    """Return what follows for each value of a property, for all others, without the property, and
    for what is no object."""
    ways: list[MadeSchema] = []
    alike: dict[tuple[bool, ...], list[object]] = {}
    for key, value in literals.items():
        alike.setdefault(tuple(key in case.keys for case in cases), []).append(value)
    for holds, values in alike.items():
        follows = [
            case.then if is_met else case.otherwise
            for case, is_met in zip(cases, holds, strict=True)
        ]
        ways.append(_all(_object(name, {"enum": values}), *follows))
    ways.append(_all(_object(name, others), *(case.otherwise for case in cases)))
    absent = [case.otherwise if case.is_required else case.then for case in cases]
    ways.append(_all({"type": "object", "properties": {name: False}}, *absent))
    no_object = [case.otherwise if case.is_said else case.then for case in cases]
    ways.append(_all({"type": list(_NO_OBJECTS)}, *no_object))
    return ways


def _object(name: str, schema: MadeSchema) -> MadeSchema:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


_NO_OBJECTS = ("null", "boolean", "number", "string", "array")


def _one_of(place: SchemaPlace) -> None:
    """Say as `anyOf` what has branches that exclude each other."""
    branches = place.keywords.get("oneOf")
    if not isinstance(branches, list):
        return
    kept = [each for each in branches if each is not False]
    if place.rewriting.exclusion.among([_with(place, each) for each in kept]):
        _any_of(place, kept)
        return
    apart = _apart(place, kept)
    if apart is not None:
        place.take("oneOf")
        place.offer(apart, "oneOf")
        return
    place.rewriting.lose(place.where("oneOf"))
    _any_of(place, kept)


def _with(place: SchemaPlace, branch: object) -> object:
    """Return a branch with what is said beside it of the types and values."""
    beside = {name: place.keywords[name] for name in ("type",) if name in place.keywords}
    return {"allOf": [branch, beside]} if beside else branch


def _any_of(place: SchemaPlace, branches: list[object]) -> None:
    place.take("oneOf")
    if "anyOf" in place.keywords:
        place.add({"anyOf": branches}, "oneOf")
    else:
        for index, each in enumerate(branches):
            place.rewriting.put(each, f"{place.where('oneOf')}[{index}]")
        place.keywords["anyOf"] = branches


def _apart(place: SchemaPlace, branches: list[object]) -> list[MadeSchema] | None:
    """Return branches that exclude each other, since each says that it is none of the others; None
    where that cannot be said."""
    if len(branches) > MAX_NEGATED:
        return None
    negated = [place.rewriting.negation.of(each) for each in branches]
    if any(each is None for each in negated):
        return None
    made: list[MadeSchema] = []
    for index, branch in enumerate(branches):
        others = [
            either(_of_kinds(place, each))
            for other, each in enumerate(negated)
            if other != index and each is not None
        ]
        made.append(_all(branch, *others))
    num_ways = [max(1, len(each)) for each in negated if each is not None]
    total = 1
    for each in num_ways:
        total *= each
    return made if total <= place.room else None
