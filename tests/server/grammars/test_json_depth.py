"""Levels of a schema are counted through references and alternatives, and never too few."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.grammars.json_depth import num_levels
from tests.profiles import cases

MOST = 10
TEXT = {"type": "string"}
LINES = {"type": "array", "items": TEXT}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, 0),
        ({"enum": [1, "x"]}, 0),
        (LINES, 1),
        ({"properties": {"a": TEXT}}, 1),
        ({"type": "object", "properties": {"a": LINES, "b": TEXT}}, 2),
        ({"anyOf": [TEXT, {"type": ["array", "null"], "prefixItems": [LINES]}]}, 2),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": LINES}}, 2),
        ({"type": "object", "additionalProperties": False}, 1),
        ({"type": "object", "additionalProperties": LINES}, 2),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, MOST),
        ({}, MOST),
        ({"type": "object"}, MOST),
        ({"type": "array", "items": True}, MOST),
        ({"type": "object", "properties": {"a": {"description": "anything"}}}, MOST),
    ],
)
def test_levels_are_those_that_the_schema_has(schema: dict[str, object], expected: int) -> None:
    assert num_levels(schema, MOST) == expected


SCHEMAS = st.recursive(
    st.just(TEXT),
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(
            lambda each: {"type": "object", "properties": each}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda each: {"anyOf": each}),
    ),
    max_leaves=5,
)


def deepest(schema: dict[str, object]) -> object:
    """The value with the most levels, as its schema is written."""
    match schema:
        case {"items": dict(items)}:
            return [deepest(items)]
        case {"properties": dict(properties)}:
            return {name: deepest(each) for name, each in properties.items()}
        case {"anyOf": list(choices)}:
            return max(map(deepest, choices), key=levels_of)
    return "x"


def levels_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, str) or not isinstance(inner, list | type({}.values())):
        return 0
    return 1 + max(map(levels_of, inner), default=0)


@given(SCHEMAS)
@cases(100)
def test_the_deepest_value_has_as_many_levels(schema: dict[str, object]) -> None:
    value = deepest(schema)
    assert num_levels(schema, MOST) == levels_of(value)
    indented = json.dumps(value, indent=1).splitlines()
    assert max(len(line) - len(line.lstrip()) for line in indented) <= num_levels(schema, MOST)
