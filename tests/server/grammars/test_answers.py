"""What is of the grammar of a schema is valid under it, for any schema and any choice of tokens."""

import json
from importlib.util import find_spec
from random import Random

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from pydantic_core import from_json

from quire.server.errors import RequestError
from quire.server.grammars.answers import answer
from quire.server.grammars.compose import compose
from quire.server.grammars.source import GrammarKind, GrammarSource
from tests.profiles import cases
from tests.server.grammars.matching import accepts, matcher
from tests.server.grammars.sampling import sampled

MAX_TOKENS = 400
NAMES = st.sampled_from(["a", "b", "ab", "é", 'q"', "\\"])
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "x/é\n"])
SIMPLE = st.one_of(
    st.just({}),
    st.just({"type": ["string", "null"]}),
    st.builds(lambda value: {"const": value}, VALUES),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(
        lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n},
        st.integers(-50, 50),
        st.integers(0, 200),
    ),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.integers(-9, 9)),
    st.builds(lambda of: {"type": "integer", "multipleOf": of}, st.integers(1, 12)),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, n: {"type": "string", "minLength": low, "maxLength": low + n},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.sampled_from([{"type": "string", "pattern": each} for each in ("b", "^a+$", "^[^a]{2}")]),
)


def _objects(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    return st.builds(
        lambda properties, required, more, pattern: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            "additionalProperties": more,
            **({"patternProperties": {"^z": pattern}} if pattern is not None else {}),
        },
        properties,
        st.sets(NAMES, max_size=2),
        st.booleans() | inner,
        st.none() | inner,
    )


def _arrays(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.builds(
        lambda items, first, low, n: {
            "type": "array",
            "items": items,
            **({"prefixItems": [first]} if first is not None else {}),
            "minItems": low,
            "maxItems": low + n,
        },
        inner,
        st.none() | inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def _combined(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.builds(lambda how, parts: {how: parts}, st.sampled_from(["anyOf", "allOf"]), several)


SCHEMAS = st.recursive(
    SIMPLE, lambda inner: _objects(inner) | _arrays(inner) | _combined(inner), max_leaves=6
)


@given(SCHEMAS, st.integers(0, 2**32), st.integers(1, 10) | st.just(MAX_TOKENS), st.booleans())
@example({"patternProperties": {"^a": {"type": "null"}}, "type": "object"}, 1, MAX_TOKENS, False)
@cases(200)
@pytest.mark.skipif(find_spec("jsonschema") is None, reason="jsonschema is not installed")
def test_what_a_model_writes_is_valid(
    schema: object, seed: int, num_tokens: int, any_whitespace: bool
) -> None:
    from jsonschema import Draft202012Validator

    source = GrammarSource(GrammarKind.JSON, json.dumps(schema), "guided_json")
    try:
        made = answer(source, any_whitespace=any_whitespace)
        grammar = compose(made.body, None, prompt="", special_tokens={})
        matcher(grammar)
    except (RequestError, AssertionError):
        event("refused")
        return
    text, has_ended = sampled(grammar, Random(seed), num_tokens)
    if has_ended:
        Draft202012Validator(schema).validate(json.loads(text))
    else:
        from_json("[" + text.decode(errors="ignore"), allow_partial="trailing-strings")
    event("ended" if has_ended else "cut")


def body(kind: GrammarKind, text: str) -> str:
    return compose(answer(GrammarSource(kind, text, "x")).body, None, prompt="", special_tokens={})


def test_a_key_cannot_pass_for_another_by_an_escape() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
    }
    grammar = body(GrammarKind.JSON, json.dumps(schema))
    assert accepts(grammar, '{"ab":1,"b":"x"}')
    assert not accepts(grammar, '{"ab":"x"}') and not accepts(grammar, r'{"\u0061b":"x"}')


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ('start: "a" # }\n', "a", "b"),
        ('start: x y\nx: "}"\n%ignore / /\ny: "z"', "} z", "}"),
        ('root ::= "a" ("b" | [^c-d])+', "abx", "ac"),
        (r'root ::= "\u0041\x42" [\u00e9-\u00EA] "\\u0041\n"', "ABé\\u0041\n", "Aé"),
        ('root ::= item{2,3}\nitem ::= "x" | "y" # either\n', "xy", "x"),
    ],
)
def test_grammars_of_both_kinds_are_read(text: str, right: str, wrong: str) -> None:
    grammar = body(GrammarKind.GRAMMAR, text)
    assert accepts(grammar, right) and not accepts(grammar, wrong)
