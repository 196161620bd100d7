"""Schemas that would not be enforced are refused with the path of what is wrong."""

from collections.abc import Mapping

import pytest

from quire.server.errors import RequestError
from quire.server.grammars.schema_check import check_schema

OBJECT = {"type": "object"}


def linked(**fields: object) -> dict[str, object]:
    """A list, each item of which holds the next."""
    return {"type": "object", "properties": {"next": {"$ref": "#", **fields}}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"title": "T", "description": "", "default": 1, "examples": [], "x-order": 3},
        {"properties": {"not": {"type": "string"}, "$ref": {}, "minlength": True}},
        {"$defs": {"unused": {"not": {}}, "a/b": OBJECT}, "$ref": "#/$defs/a~1b"},
        {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/0"}]},
        linked(),
        {**linked(), "required": [], "properties": {"a": {"anyOf": [{"$ref": "#"}, True]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {**OBJECT, "minProperties": 2, "required": ["a"]},
        {"enum": [{"not": 1}], "const": {"if": 2}},
        {
            "properties": {
                "a": {"multipleOf": 0.01},
                "b": {"multipleOf": 1e3},
                "c": {"multipleOf": 5},
            }
        },
    ],
)
def test_what_is_enforced_is_taken(schema: Mapping[str, object]) -> None:
    assert check_schema(schema, "f", strict=True) == ()


@pytest.mark.parametrize(
    ("schema", "path", "why"),
    [
        ({"not": {}}, "f.not", "cannot be enforced"),
        ({"properties": {"a": {"uniqueItems": True}}}, "f.properties.a.uniqueItems", "enforced"),
        ({"items": [{}, {"if": {}}]}, "f.items[1].if", "enforced"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": 1}}}, "f.$defs.a.contains", "enforced"),
        ({"x-guidance": {"lenient": True}}, "f.x-guidance", "enforced"),
        ({"properties": []}, "f.properties", "an object"),
        ({"anyOf": {}}, "f.anyOf", "a list"),
        ({"allOf": [1]}, "f.allOf[0]", "a schema"),
        ({"items": None}, "f.items", "a schema"),
        ({"items": {"$ref": "http://x/y"}}, "f.items.$ref", "into this schema"),
        ({"$ref": 1}, "f.$ref", "into this schema"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "f.$ref", "leads nowhere"),
        ({"$ref": "#/type", "type": "object"}, "f.type", "a schema"),
        ({"$ref": "#"}, "f", "never end"),
        ({**linked(), "required": ["next"]}, "f", "never end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "f", "never end"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}, False]}]}, "f", "never end"),
        ({"multipleOf": 10_007}, "f.multipleOf", "at most 10000"),
        ({"multipleOf": 1.0007e300}, "f.multipleOf", "at most 10000"),
        ({"allOf": [{"multipleOf": 101}, {"multipleOf": 1.03}]}, "multipleOf", "at most 10000"),
        ({**OBJECT, "minProperties": 3, "required": ["a"]}, "f.minProperties", "1 here"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_not_is_named(
    schema: Mapping[str, object], path: str, why: str, strict: bool
) -> None:
    with pytest.raises(RequestError) as raised:
        check_schema(schema, "f", strict=strict)
    assert (raised.value.param or "").endswith(path) and why in raised.value.message


def test_a_keyword_without_a_meaning_is_warned_of_or_refused() -> None:
    schema = {"items": {"minlength": 3, "new\nline": 1}}
    (warning,) = check_schema(schema, "f", strict=False)
    assert "'f.items.minlength'" in warning and warning.isprintable()
    with pytest.raises(RequestError) as raised:
        check_schema(schema, "f", strict=True)
    assert "did you mean 'minLength'" in raised.value.message


def test_a_long_chain_of_references_is_followed() -> None:
    links = {str(index): {"$ref": f"#/$defs/{index + 1}"} for index in range(2500)}
    schema = {"$ref": "#/$defs/0", "$defs": {**links, "2500": {}}}
    assert check_schema(schema, "f", strict=True) == ()
    with pytest.raises(RequestError):
        check_schema({**schema, "$defs": {**links, "2500": {"$ref": "#"}}}, "f", strict=True)
