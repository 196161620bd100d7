"""Keywords that grammars are not made of become those that they are made of: all that is written is
valid by jsonschema, and what is valid can be written.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, permutations, product

import jsonschema
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from quire.server.errors import RequestError
from tests.profiles import cases
from tests.server.grammars.matching import matcher
from tests.server.grammars.sampling import grammar_of, taken, written

Schema = dict[str, object]
PLAIN: list[object] = [None, True, False, 0, 1, 2, 5, -1, 0.5, "", "a", "b", "ab", "x"]
NAMES = ("a", "b", "c", "ab", "z")
OBJECTS: list[object] = [
    dict(zip(names, (*values, 1), strict=False))
    for size in range(4)
    for names in combinations(NAMES, size)
    for values in product((0, "a", "b")[: 3 if size < 3 else 2], repeat=min(size, 2))
]
ARRAYS: list[object] = [
    list(values) for size in range(4) for values in product((0, 1, "a", True), repeat=size)
]
VALUES = [*PLAIN, *OBJECTS, *ARRAYS]

LEAVES: st.SearchStrategy[object] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"const": "a"},
        {"const": 0},
        {"enum": ["a", "b", 0]},
        {"enum": [None, True]},
        {"type": "number", "minimum": 1},
        {"type": "string", "maxLength": 1},
        {"type": ["null", "boolean"]},
        {},
        True,
    ]
)
NAME = st.sampled_from(NAMES)
PROPERTIES = st.dictionaries(NAME, LEAVES, max_size=3)
REQUIRED = st.lists(NAME, max_size=2, unique=True)
OTHERS = st.booleans() | LEAVES


def fields(**of: st.SearchStrategy[object]) -> st.SearchStrategy[Schema]:
    """Schemas of objects that say some of these."""
    plain: dict[str, st.SearchStrategy[object]] = {
        "properties": PROPERTIES,
        "required": REQUIRED,
        "additionalProperties": OTHERS,
    }
    made = st.fixed_dictionaries({"type": st.just("object")}, optional=plain)
    return st.builds(lambda one, other: {**one, **other}, made, st.fixed_dictionaries(dict(of)))


PATTERNS = st.sampled_from(["^a", "b$", "^z", "^[ab]$", "c", "^(?!x)a"])
NAMES_SCHEMAS = st.one_of(
    st.builds(lambda pattern: {"pattern": pattern}, PATTERNS),
    st.builds(lambda names: {"enum": names}, st.lists(NAME, max_size=3, unique=True)),
    st.builds(lambda name: {"const": name}, NAME),
    st.builds(lambda low, n: {"minLength": low, "maxLength": low + n}, *[st.integers(0, 1)] * 2),
    st.sampled_from([True, False, {"type": "string"}, {"maxLength": 1, "type": "string"}]),
)
TESTS = st.one_of(
    st.builds(lambda name, value: {"properties": {name: value}}, NAME, LEAVES),
    st.builds(lambda names: {"required": names}, st.lists(NAME, min_size=1, max_size=2)),
    st.builds(lambda name, value: {"properties": {name: value}, "required": [name]}, NAME, LEAVES),
    LEAVES,
)
CONDITIONS = st.fixed_dictionaries({"if": TESTS}, optional={"then": TESTS, "else": TESTS})
ONE_CASE = st.builds(
    lambda values, then, otherwise, is_required: {
        "if": {
            "properties": {"a": {"enum": values}},
            **({"required": ["a"]} if is_required else {}),
        },
        "then": then,
        **({"else": otherwise} if otherwise is not None else {}),
    },
    st.lists(st.sampled_from(["a", "b", 0]), min_size=1, max_size=2, unique=True),
    TESTS,
    st.none() | TESTS,
    st.booleans(),
)
ITEMS = st.sampled_from(
    [
        {"enum": [0, 1]},
        {"enum": [0, 1, "a"]},
        {"type": "boolean"},
        {"const": 1},
        {"type": "integer"},
    ]
)
COUNTS = st.fixed_dictionaries(
    {}, optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 3)}
)
FAMILIES: Mapping[str, st.SearchStrategy[Schema]] = {
    "propertyNames": fields(propertyNames=NAMES_SCHEMAS),
    "patternProperties": fields(
        patternProperties=st.dictionaries(PATTERNS, LEAVES, min_size=1, max_size=2)
    ),
    "minProperties": fields(minProperties=st.integers(0, 3)),
    "maxProperties": fields(maxProperties=st.integers(0, 3)),
    "both counts": fields(minProperties=st.integers(0, 2), maxProperties=st.integers(1, 3)),
    "dependentRequired": fields(
        dependentRequired=st.dictionaries(NAME, REQUIRED, min_size=1, max_size=2)
    ),
    "dependentSchemas": fields(
        dependentSchemas=st.dictionaries(NAME, TESTS, min_size=1, max_size=1)
    ),
    "unevaluatedProperties": fields(unevaluatedProperties=OTHERS),
    "not": st.builds(lambda one, other: {**one, "not": other}, st.just({}) | fields(), TESTS),
    "not of leaves": st.builds(lambda one, other: {"allOf": [one, {"not": other}]}, LEAVES, LEAVES),
    "if": st.builds(lambda one, other: {**one, **other}, st.just({}) | fields(), CONDITIONS),
    "cases": st.builds(
        lambda one, cases: {**one, "allOf": cases},
        st.just({}) | fields(),
        st.lists(ONE_CASE, min_size=2, max_size=3),
    ),
    "oneOf": st.builds(lambda ways: {"oneOf": ways}, st.lists(TESTS, min_size=1, max_size=3)),
    "uniqueItems": st.builds(
        lambda items, counts: {"type": "array", "items": items, "uniqueItems": True, **counts},
        ITEMS,
        COUNTS,
    ),
    "contains": st.builds(
        lambda items, wanted, counts: {"items": items, "contains": wanted, **counts},
        st.just({}) | ITEMS,
        LEAVES,
        COUNTS,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_valid_and_what_is_valid_can_be_written(family: str) -> None:
    @given(FAMILIES[family], st.integers(0, 2**32))
    @cases(30)
    def check(schema: Schema, seed: int) -> None:
        check_schema(schema, seed)

    check()


def check_schema(schema: Schema, seed: int) -> None:
    try:
        grammar, loosened = grammar_of(schema)
        matcher(grammar)
    except (RequestError, AssertionError):
        event("refused")
        return
    validator = jsonschema.Draft202012Validator(schema)
    is_exact = not loosened
    event("enforced" if is_exact else "loosened")
    if is_exact:
        for offset in range(4):
            for value in written(grammar, seed + offset):
                validator.validate(value)
    orders = [list(ways_to_write(value)) for value in VALUES]
    written_ways = [way for ways in orders for way in ways]
    found = iter([is_taken for _, is_taken in taken(grammar, written_ways)])
    for value, ways in zip(VALUES, orders, strict=True):
        is_valid, is_taken = validator.is_valid(value), any([next(found) for _ in ways])
        assert is_taken or not is_valid, (schema, value)
        assert is_valid or not is_taken or not is_exact, (schema, value)


def ways_to_write(value: object) -> Iterator[object]:
    """The value, with its properties in each order."""
    if isinstance(value, dict):
        yield from (dict(each) for each in permutations(value.items()))
    else:
        yield value
