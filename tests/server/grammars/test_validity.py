"""Finished values are checked against whole schemas, as `jsonschema` says it, whatever meets in
them."""

import json
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given

from quire.server.grammars.value_keywords import leanly

NAMES = ("a", "b", "c")
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, {"type": "integer"}, {"minimum": 2}, {"const": "x"}, {"type": ["string", "null"]}]
)
REFERENCES = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])
DRAFTS = st.sampled_from(
    [
        jsonschema.Draft4Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft201909Validator,
        jsonschema.Draft202012Validator,
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 1, 2, 3, "x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pq"), inner),
    max_leaves=8,
)
NUM_DEEP = 60


def schemas(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of keywords that hold others."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(
                lambda keyword, branches: {keyword: branches},
                st.sampled_from(["anyOf", "oneOf", "allOf"]),
                st.lists(inner, min_size=1, max_size=3),
            ),
            st.builds(lambda each: {"not": each}, inner),
            st.builds(lambda one, other: {"if": one, "then": other}, inner, inner),
            st.builds(lambda each: {"properties": {"p": each}, "required": ["p"]}, inner),
            st.builds(lambda each: {"items": each}, inner),
            st.builds(lambda each: {"contains": each}, inner),
            st.builds(lambda one: {"allOf": [one], "unevaluatedProperties": False}, inner),
        ),
        max_leaves=6,
    )


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas whose definitions refer to those after them, and to themselves from within."""
    inside = schemas(LEAVES | REFERENCES)
    defs: dict[str, Any] = {}
    for index, name in enumerate(NAMES):
        later = [{"$ref": f"#/$defs/{each}"} for each in NAMES[index + 1 :]]
        made = draw(schemas(LEAVES | st.sampled_from(later) if later else LEAVES))
        defs[name] = {"allOf": [made, {"properties": {"q": draw(inside)}}]}
    return {"$defs": defs, "anyOf": [draw(inside), {"oneOf": [draw(inside), draw(inside)]}]}


@given(documents(), VALUES, DRAFTS)
def test_lean_keywords_find_the_same_values_valid(schema: Any, value: Any, draft: Any) -> None:
    schema, value = json.loads(json.dumps(schema)), json.loads(json.dumps(value))
    assert leanly(draft, schema)(schema).is_valid(value) is draft(schema).is_valid(value)


def test_a_reference_that_depends_on_the_way_to_it_is_followed_each_time() -> None:
    """One that is dynamic has two meanings for one value here."""
    node = {
        "$id": "node",
        "$dynamicAnchor": "node",
        "properties": {"next": {"$ref": "#/$defs/same"}},
        "$defs": {"same": {"$dynamicRef": "#node"}},
    }
    strict = {
        "$id": "strict",
        "$dynamicAnchor": "node",
        "$ref": "node",
        "required": ["next"],
    }
    schema = {
        "$id": "http://x/",
        "$defs": {"node": node, "strict": strict},
        "anyOf": [{"allOf": [{"$ref": "node"}, {"$ref": "strict"}]}, {"$ref": "node"}],
    }
    draft = jsonschema.Draft202012Validator
    values: tuple[Any, ...] = ({"next": {}}, {"next": {"next": 1}}, {"next": 1})
    for value in values:
        assert leanly(draft, schema)(schema).is_valid(value) is draft(schema).is_valid(value)


CHECKS = """
import json, sys
from quire.server.grammars.validity import ValueCheck, check_values
print(check_values([ValueCheck(*json.loads(sys.argv[1]))]).value)
"""


@pytest.mark.parametrize(
    ("keyword", "valid"), [("allOf", "valid"), ("anyOf", "valid"), ("oneOf", "invalid")]
)
@pytest.mark.parametrize("value", ["[7]", '["x"]'])
def test_references_that_meet_again_and_again_are_checked(
    keyword: str, valid: str, value: str
) -> None:
    """Each definition refers twice to the next: 2 to the 60 ways lead to the last. A check in a
    process of its own would be ended after a second."""
    defs: dict[str, Any] = {
        f"d{index}": {keyword: [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(NUM_DEEP)
    }
    defs[f"d{NUM_DEEP}"] = {"type": "integer"}
    schema = json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": defs,
            "anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"$ref": "#/$defs/d0"}],
        }
    )
    told = subprocess.run(
        [sys.executable, "-c", CHECKS, json.dumps([schema, value])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert told.stdout.strip() == (valid if value == "[7]" else "invalid")
