"""Grammars made to be hard are refused, or compiled, within their limits."""

import json
import re
import threading
import time

import pytest

from quire.server.errors import RequestError
from quire.server.grammars.answers import answer
from quire.server.grammars.check import SpecialTokens, check_grammar, may_explode
from quire.server.grammars.compose import Grammar
from quire.server.grammars.source import GrammarKind, GrammarSource

VOCABULARY = SpecialTokens(300, (("<|end|>", 1), ("<think>", 299)), (1,))
MOST_CPU_S = 2.0
"""It takes up to 0.2 s on an idle core."""

Schema = dict[str, object]


def _objects(prefix: str, num: int) -> list[Schema]:
    names = [f"{prefix}{index}" for index in range(num)]
    return [{"type": "object", "properties": {name: {"type": "string"}}} for name in names]


def _doubled(depth: int) -> Schema:
    """Each level holds the next one twice."""
    defs: dict[str, object] = {str(depth): {"type": "object"}}
    for level in range(depth):
        next_one = {"$ref": f"#/$defs/{level + 1}", "maxProperties": 9}
        defs[str(level)] = {"type": "object", "properties": {"l": next_one, "r": next_one}}
    return {"$ref": "#/$defs/0", "$defs": defs}


HARD_SCHEMAS: dict[str, Schema] = {
    "intersections of unions": {"allOf": [{"anyOf": _objects(f"p{i}_", 10)} for i in range(20)]},
    "levels that double": _doubled(9),
    "many optional names": {
        "type": "object",
        "properties": {f"p{index}": {"type": "string"} for index in range(1500)},
    },
    "multiples of a prime": {"type": "integer", "multipleOf": 999_999_937},
    "very long": {"type": "array", "minItems": 100_000, "items": {"maxLength": 100_000}},
    "cycles that meet": {
        "type": "object",
        "properties": {
            f"p{index}": {"allOf": [{"$ref": "#"}, {"maxProperties": index}]} for index in range(12)
        },
    },
    "negations": {"allOf": [{"not": {"const": f"{index}" + "x" * 99}} for index in range(400)]},
    "conditions": {
        "allOf": [
            {
                "if": {"properties": {"k": {"const": index}}},
                "then": {"required": [f"p{index}"]},
                "else": {"maxProperties": index},
            }
            for index in range(60)
        ]
    },
    "overlapping patterns": {
        "type": "object",
        "patternProperties": {f"(.*{letter}){{5}}": {} for letter in "abcdefghij"},
    },
}
HARD_EXPRESSIONS = (
    "((((a{1,100}){1,100}){1,100}){1,100}){1,100}",
    "(x+x+)+y",
    "(a|b)*a(a|b){20}",
    r"\w{500}\d{500}\p{L}{500}",
    "(.*a){12}(.*b){12}(.*c){12}",
)


def checked(kind: GrammarKind, text: str) -> str | None:
    """Return why a source is refused, None if it is taken."""
    try:
        body = answer(GrammarSource(kind, text, "field")).body
        check_grammar(Grammar(f"start: body\n{body}", kind, "field"), VOCABULARY)
    except RequestError as error:
        assert (error.param or "").startswith("field")
        return error.message
    return None


@pytest.mark.parametrize("schema", HARD_SCHEMAS.values(), ids=HARD_SCHEMAS)
def test_a_hard_schema_takes_little_time(schema: Schema) -> None:
    began_s = time.thread_time()
    why = checked(GrammarKind.JSON, json.dumps(schema))
    assert time.thread_time() - began_s < MOST_CPU_S
    assert why is None or len(why) < 500


@pytest.mark.parametrize("expression", HARD_EXPRESSIONS)
def test_a_hard_expression_takes_little_time(expression: str) -> None:
    began_s = time.thread_time()
    checked(GrammarKind.REGEX, expression)
    assert time.thread_time() - began_s < MOST_CPU_S


def test_what_explodes_is_refused() -> None:
    unions = json.dumps(HARD_SCHEMAS["intersections of unions"])
    assert "too large" in str(checked(GrammarKind.JSON, unions))


def test_a_check_leaves_the_interpreter_to_others() -> None:
    """Another thread goes round many times meanwhile."""
    text = json.dumps(HARD_SCHEMAS["many optional names"])
    body = answer(GrammarSource(GrammarKind.JSON, text, "field")).body
    grammar = Grammar(f"start: body\n{body}", "json", "field")
    check_grammar(Grammar('start: "a"', "json", "field"), VOCABULARY)
    checking = threading.Thread(target=check_grammar, args=(grammar, VOCABULARY))
    checking.start()
    num_rounds = 0
    while checking.is_alive():
        num_rounds += 1
    assert num_rounds > 1000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "(a"),
        (GrammarKind.REGEX, "(?=a)b"),
        (GrammarKind.GRAMMAR, "start: <no_such_token>"),
        (GrammarKind.GRAMMAR, "start: <[10000000]>"),
        (GrammarKind.GRAMMAR, "start: start"),
        (GrammarKind.JSON, '{"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]}'),
        (GrammarKind.JSON, '{"type": "strin"}'),
    ],
)
def test_an_error_shows_neither_the_grammar_nor_the_parser(kind: GrammarKind, text: str) -> None:
    why = checked(kind, text)
    assert why is not None and why.isprintable() and len(why) < 500
    assert "x-guidance" not in why and not re.search("non-verbose|<state", why)


def test_what_may_explode_is_told_from_what_may_not() -> None:
    def told(schema: Schema) -> bool:
        return may_explode(Grammar("%json " + json.dumps(schema), "json", "field"))

    nested: Schema = {"properties": {f"p{index}": {"$ref": "#/$defs/a"} for index in range(12)}}
    assert not any(map(told, HARD_SCHEMAS.values())) and not told(nested)
    assert told(_doubled(14)) and told(_doubled(200))
    assert may_explode(Grammar('start: %json {"multipleOf": 999983}', GrammarKind.GRAMMAR, "field"))


def test_special_tokens_of_the_model_are_known() -> None:
    assert checked(GrammarKind.GRAMMAR, "start: <think> <[299]>") is None
