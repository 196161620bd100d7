"""A client's schema becomes one that grammars can be made of; what cannot be enforced is left out,
or refused where that was promised, with the path of what is wrong.
"""

from collections.abc import Mapping

import pytest

from quire.server.errors import RequestError
from quire.server.grammars.schemas.enforceable import FORMATS, SchemaTerms, enforceable
from tests.server.grammars.sampling import grammar_of, taken

OBJECT = {"type": "object"}


def linked(**fields: object) -> dict[str, object]:
    """A list, each item of which holds the next."""
    return {"type": "object", "properties": {"next": {"$ref": "#", **fields}}}


def accepts(schema: object, value: object, *, strict: bool = True) -> bool:
    grammar, _ = grammar_of(schema, strict=strict)
    ((_, is_taken),) = taken(grammar, [value])
    return is_taken


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"title": "T", "description": "", "default": 1, "examples": [], "x-order": 3},
        {"properties": {"not": {"type": "string"}, "$ref": {}, "minlength": True}},
        {
            "$defs": {"unused": {"contains": {}, "minContains": 9}, "a/b": OBJECT},
            "$ref": "#/$defs/a~1b",
        },
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
    made = enforceable(schema, "f", SchemaTerms(True))
    assert (made.loosened, made.warnings) == ((), ())


LOSABLE = [
    ({"not": {"pattern": "a"}}, "f.not", "x"),
    (
        {"properties": {"a": {"type": "array", "uniqueItems": True}}},
        "f.properties.a.uniqueItems",
        {"a": [1, 2]},
    ),
    ({"items": [{}, {"if": {"pattern": "a"}, "then": {"maxLength": 1}}]}, "f.items[1].if", [1, 2]),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"contains": {"const": 1}, "minContains": 9}}},
        "f.$defs.a.contains",
        [1] * 9,
    ),
    ({"items": {"$ref": "http://x.example/y"}}, "f.items.$ref", [1]),
    ({"multipleOf": 10_007}, "f.multipleOf", 10_007),
    ({"multipleOf": 1.0007e300}, "f.multipleOf", 0),
    ({"allOf": [{"multipleOf": 101}, {"multipleOf": 1.03}]}, "f.allOf[1].multipleOf", 0),
    (
        {**OBJECT, "minProperties": 3, "required": ["a"]},
        "f.minProperties",
        {"a": 1, "b": 2, "c": 3},
    ),
    ({"type": "integer", "minimum": 1e18}, "f.minimum", 10**19),
    ({"type": "number", "exclusiveMaximum": -1e18}, "f.exclusiveMaximum", -(10**19)),
    ({"type": "string", "pattern": "^(?!a)"}, "f.pattern", "b"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "f.pattern", "aa"),
    ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "f.oneOf", "a"),
    ({**OBJECT, "propertyNames": {"pattern": "^(?!a)"}}, "f.propertyNames", {"b": 1}),
    (
        {**OBJECT, "patternProperties": {"^(?!a)": {"const": 1}}},
        "f.patternProperties.^(?!a)",
        {"b": 1},
    ),
    (
        {**OBJECT, "patternProperties": {"a": {"maxLength": 1}, "b": {"pattern": "x"}}},
        "f.patternProperties.b",
        {"a": "y", "b": "x"},
    ),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        "f.unevaluatedProperties",
        {"a": 1},
    ),
    ({"contains": {"const": 1}, "maxContains": 1}, "f.maxContains", [1]),
    ({"extends": {}}, "f.extends", 1),
    ({"disallow": "string"}, "f.disallow", 1),
    ({"divisibleBy": 2}, "f.divisibleBy", 2),
    (
        {
            "$dynamicRef": "#n",
            "$defs": {"a": {"$dynamicAnchor": "n"}, "b": {"$dynamicAnchor": "n"}},
        },
        "f.$dynamicRef",
        1,
    ),
]


@pytest.mark.parametrize(("schema", "path", "value"), LOSABLE)
def test_what_is_not_enforced_is_left_out_and_named(
    schema: Mapping[str, object], path: str, value: object
) -> None:
    grammar, loosened = grammar_of(schema)
    assert loosened == (path,)
    assert list(taken(grammar, [value])) == [(value, True)]


@pytest.mark.parametrize(("schema", "path", "value"), LOSABLE)
def test_what_is_not_enforced_is_refused_where_that_was_promised(
    schema: Mapping[str, object], path: str, value: object
) -> None:
    with pytest.raises(RequestError) as raised:
        enforceable(schema, "f", SchemaTerms(True))
    assert raised.value.param == path and "cannot be enforced" in raised.value.message


@pytest.mark.parametrize(
    ("schema", "path", "why"),
    [
        ({"properties": []}, "f.properties", "an object"),
        ({"anyOf": {}}, "f.anyOf", "a list"),
        ({"allOf": [1]}, "f.allOf[0]", "a schema"),
        ({"items": None}, "f.items", "a schema"),
        ({"not": 3}, "f.not", "a schema"),
        ({"if": []}, "f.if", "a schema"),
        ({"propertyNames": 1}, "f.propertyNames", "a schema"),
        ({"required": True}, "f.required", "a list of strings"),
        ({"type": "any"}, "f.type", "must be of"),
        ({"enum": 1}, "f.enum", "a list"),
        ({"minLength": -1}, "f.minLength", "at least 0"),
        ({"maxItems": 1.5}, "f.maxItems", "an integer"),
        ({"minimum": "1"}, "f.minimum", "a number"),
        ({"multipleOf": 0}, "f.multipleOf", "above 0"),
        ({"pattern": 1}, "f.pattern", "a string"),
        ({"uniqueItems": "yes"}, "f.uniqueItems", "true or false"),
        ({"$ref": 1}, "f.$ref", "a reference"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "f.$ref", "leads nowhere"),
        ({"$ref": "#b"}, "f.$ref", "leads nowhere"),
        ({"$ref": "#/type", "type": "object"}, "f.type", "a schema"),
        ({"$ref": "#"}, "f", "never end"),
        ({**linked(), "required": ["next"]}, "f", "never end"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "f", "never end"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}, False]}]}, "f", "never end"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_no_schema_is_refused(
    schema: Mapping[str, object], path: str, why: str, strict: bool
) -> None:
    with pytest.raises(RequestError) as raised:
        enforceable(schema, "f", SchemaTerms(strict))
    assert raised.value.param == path and why in raised.value.message


@pytest.mark.parametrize("keyword", ["minlength", "x-guidance"])
def test_a_keyword_without_a_meaning_is_warned_of_or_refused(keyword: str) -> None:
    schema = {"items": {keyword: 3, "new\nline": 1}}
    made = enforceable(schema, "f", SchemaTerms(False))
    (warning,) = made.warnings
    assert f"'f.items.{keyword}'" in warning and warning.isprintable() and not made.loosened
    with pytest.raises(RequestError) as raised:
        enforceable(schema, "f", SchemaTerms(True))
    assert raised.value.param == f"f.items.{keyword}"


def test_a_mistyped_keyword_is_suggested() -> None:
    with pytest.raises(RequestError, match="did you mean 'minLength'"):
        enforceable({"minlength": 3}, "f", SchemaTerms(True))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["binary", "password", "uuid4", "int64", "regex", "uri-reference"])
def test_a_format_that_is_not_known_is_an_annotation(name: str, strict: bool) -> None:
    grammar, loosened = grammar_of({"type": "string", "format": name}, strict=strict)
    assert not loosened and list(taken(grammar, ["any\ntext"])) == [("any\ntext", True)]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_that_is_known_is_enforced(name: str) -> None:
    assert not accepts({"type": "string", "format": name}, "-")


def test_a_long_chain_of_references_is_followed() -> None:
    links = {str(index): {"$ref": f"#/$defs/{index + 1}"} for index in range(2500)}
    schema = {"$ref": "#/$defs/0", "$defs": {**links, "2500": {}}}
    assert enforceable(schema, "f", SchemaTerms(True)).loosened == ()
    with pytest.raises(RequestError):
        enforceable({**schema, "$defs": {**links, "2500": {"$ref": "#"}}}, "f", SchemaTerms(True))


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://x.example/s", "$ref": "http://x.example/s#/$defs/a"},
        {"$id": "http://x.example/s/", "$ref": "a"},
        {"$id": "urn:x:s", "$ref": "#/$defs/a"},
        {"$ref": "#the-a"},
        {"$dynamicRef": "#the-a"},
        {"$ref": "http://x.example/s/a#/$defs/inner"},
        {"allOf": [{"$ref": "#/$defs/b"}]},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://x.example/s/",
            "$ref": "a",
        },
    ],
)
def test_a_reference_by_name_is_followed(schema: dict[str, object]) -> None:
    word = {"const": "a"}
    named = {"$id": "http://x.example/s/a", "$dynamicAnchor": "the-a", "$defs": {"inner": word}}
    if "draft-04" in str(schema):
        named = {"id": "a", **word}
    anchored = (
        {"anchored": {"$dynamicAnchor": "the-a", **word}} if "#the-a" in schema.values() else {}
    )
    own = {
        "a": {**named, **word},
        "b": {"$id": "http://y.example/", "$ref": "#/$defs/c", "$defs": {"c": word}},
    }
    whole = {**schema, "$defs": anchored or own}
    assert accepts(whole, "a") and not accepts(whole, "b")


def test_keywords_beside_a_reference_say_nothing_in_old_drafts() -> None:
    schema = {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert accepts(old, "ab") and not accepts(schema, "ab")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, 2, 1),
        ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, 3, 4),
        ({"type": "array", "items": [{"const": 1}], "additionalItems": False}, [1], [1, 2]),
        ({"type": "string", "maxLength": 2.0}, "ab", "abc"),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, 1.5, "a"),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, 2**53, -1),
        ({"type": "object", "dependencies": {"a": "b"}}, {"a": 1, "b": 2}, {"a": 1}),
        ({"type": "string", "pattern": r"^(?<![\s\S])a(?![\s\S])"}, "a", "ab"),
        ({"type": "string", "pattern": "a(?=$)"}, "ba", "ab"),
    ],
)
def test_older_ways_to_say_it_are_enforced(schema: object, right: object, wrong: object) -> None:
    assert accepts(schema, right) and not accepts(schema, wrong)


def test_a_property_is_held_to_the_patterns_that_its_name_matches() -> None:
    schema = {"properties": {"ab": {}}, "patternProperties": {"^a": {"type": "integer"}}}
    assert accepts(schema, {"ab": 1}) and not accepts(schema, {"ab": "x"})


ADDRESS = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@"
    r"([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)


@pytest.mark.parametrize("text", ["a@b.cd", "a.b'c+d-e_f@g-h.i.jk", "-@a.bc"])
def test_an_address_of_zod_is_enforced(text: str) -> None:
    schema = {"type": "string", "pattern": ADDRESS}
    assert accepts(schema, text)
    for wrong in (f".{text}", text.replace("@", "..@"), text.replace("@", "'@"), f"{text}x1"):
        assert not accepts(schema, wrong)


def test_a_schema_that_comes_again_is_made_alike() -> None:
    schemas: list[dict[str, object]] = [
        {"const": 1},
        {"const": True},
        {"const": 1.0},
        {"b": {}, "a": {}},
        {"a": {}, "b": {}},
    ]
    made = [enforceable(each, "f", SchemaTerms()) for each in schemas]
    assert [enforceable(each, "f", SchemaTerms()) for each in schemas] == made
    assert [repr(each.schema) for each in made[:3]] == [repr(each) for each in schemas[:3]]
    assert made[3].warnings != made[4].warnings


@pytest.mark.parametrize("num_names", [1, 4000])
def test_a_schema_that_comes_at_another_place_has_paths_of_its_own(num_names: int) -> None:
    schema = {"required": [f"name{index:09}" for index in range(num_names)], "extends": {}}
    for field in ("tools[0].parameters", "tools[1].parameters", "tools[0].parameters"):
        assert enforceable(schema, field, SchemaTerms()).loosened == (f"{field}.extends",)
        with pytest.raises(RequestError) as raised:
            enforceable(schema, field, SchemaTerms(strict=True))
        assert raised.value.param == f"{field}.extends"
