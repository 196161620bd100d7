"""Structured output: what the engine is told, and what is refused."""

import json
import time
from collections.abc import Mapping

import pytest

from tests.server.apis.openai.test_errors import error_of
from tests.server.apis.openai.test_streaming import events
from tests.server.grammars.matching import accepts
from tests.server.served import Served, plain_config, serving, with_model

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def schema_format(schema: object, **fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a":[1,null]}', "[]"),
        ({"response_format": schema_format(SCHEMA)}, '{"n":1}', '{"n":1.5}'),
        ({"response_format": schema_format(SCHEMA, strict=True)}, '{"n":1}', '{"n":1'),
        ({"structured_outputs": {"json": SCHEMA}}, '{"n":1}', "{}"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, '{"n":1}', "{}"),
        ({"structured_outputs": {"json_object": True}}, "{}", "1"),
        ({"structured_outputs": {"regex": r"[a-c]/\d{2}"}}, "b/07", "b/7"),
        ({"structured_outputs": {"choice": ['"yes"', "no\n"]}}, '"yes"', "yes"),
        ({"structured_outputs": {"grammar": 'start: "a" x\nx: /[0-9]+/'}}, "a1", "a"),
        ({"guided_json": True}, "[1]", "[1"),
        ({"guided_json": SCHEMA}, '{\n  "n": 1\n}', '{"n":\n\n1}'),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            '{"n":1}',
            '{"n": 1}',
        ),
        (
            {"guided_json": SCHEMA, "structured_outputs": {"disable_any_whitespace": True}},
            '{"n":1}',
            '{"n": 1}',
        ),
        ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": False}}, "a", "b"),
        ({"guided_regex": "a+"}, "aa", ""),
        ({"guided_choice": ["a", "ab"]}, "ab", "abc"),
        ({"guided_grammar": 'root ::= "a" tail\ntail ::= [0-9]{2} | "x"'}, "a12", "a1"),
    ],
)
def test_the_engine_is_told_what_outputs_must_be_of(
    served: Served, fields: Mapping[str, object], right: str, wrong: str
) -> None:
    assert served.chat(**CHAT, **fields).status_code == 200
    assert served.complete(prompt="x", max_tokens=1, n=2, **fields).status_code == 200
    grammars = {new.sampling.grammar for new in served.engine.submitted}
    assert len(served.engine.submitted) == 3
    for grammar in grammars:
        assert accepts(grammar, right) and not accepts(grammar, wrong)


def test_a_server_may_leave_out_white_space_and_a_request_ask_for_it() -> None:
    asked: list[dict[str, object]] = [
        {"response_format": schema_format(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": None}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
    ]
    with serving(with_model(plain_config(), disable_any_whitespace=True)) as served:
        for fields in asked:
            assert served.complete(prompt="x", max_tokens=1, **fields).status_code == 200
        grammars = [new.sampling.grammar for new in served.engine.submitted]
    assert all(accepts(grammar, '{"n":1}') for grammar in grammars)
    assert [accepts(grammar, '{"n": 1}') for grammar in grammars] == [False, False, True]


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}])
def test_by_default_an_output_may_be_anything(served: Served, fields: Mapping[str, object]) -> None:
    assert served.chat(**CHAT, **fields).status_code == 200
    assert [new.sampling.grammar for new in served.engine.submitted] == [""]


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"response_format": 1}, "response_format", "an object"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object"),
        ({"response_format": {}}, "response_format.type", "one of"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "a name and a schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "1 to 64 characters",
        ),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "x", "schema": {}}}},
            "response_format.json_schema",
            "goes with",
        ),
        (
            {"response_format": schema_format([])},
            "response_format.json_schema.schema",
            "an object",
        ),
        (
            {"response_format": schema_format({}, strict=1)},
            "response_format.json_schema.strict",
            "true or false",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", ""),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "not empty"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": "yes"}},
            "structured_outputs.disable_any_whitespace",
            "true or false",
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "goes with JSON alone",
        ),
        (
            {"structured_outputs": {"disable_any_whitespace": False}},
            "structured_outputs.disable_any_whitespace",
            "goes with JSON alone",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " *"}},
            "structured_outputs.whitespace_pattern",
            "not support",
        ),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice[1]", "string"),
        ({"guided_json": "{"}, "guided_json", "a JSON schema"),
        ({"guided_json": '{"const": NaN}'}, "guided_json", "a JSON schema"),
        ({"guided_json": nested(64)}, "guided_json", "deeper than the 64 levels"),
        ({"guided_json": {"enum": list(range(9000))}}, "guided_json", "more than the 8192 values"),
        ({"guided_json": {"description": "x" * 70_000}}, "guided_json", "at most 65536"),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_regex": "a" * 70_000}, "guided_regex", "at most 65536"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "both say"),
        ({"guided_grammar": "start: foo"}, "guided_grammar", "unknown name"),
        ({"guided_grammar": "some words"}, "guided_grammar", "cannot be read as GBNF"),
        ({"guided_grammar": "root ::= " + "(" * 2000}, "guided_grammar", "cannot be read as GBNF"),
        ({"guided_grammar": "root ::= a\n" * 2000}, "guided_grammar", "can have 16384 bytes"),
        ({"guided_json": False}, "guided_json", "nothing is valid"),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "never end"),
        ({"guided_json": {"items": {"not": 3}}}, "guided_json.items.not", "a schema"),
        (
            {"response_format": schema_format({"not": {"pattern": "a"}}, strict=True)},
            "response_format.json_schema.schema.not",
            "cannot be enforced",
        ),
        (
            {"response_format": schema_format({"minlength": 1}, strict=True)},
            "response_format.json_schema.schema.minlength",
            "did you mean 'minLength'",
        ),
        ({"guided_json": {"type": "array", "minItems": 2, "maxItems": 1}}, "guided_json", "minIt"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "where the output ends"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens", "where the output may end"),
    ],
)
def test_what_cannot_be_used_is_named(
    served: Served, fields: Mapping[str, object], param: str, why: str
) -> None:
    for reply in (served.chat(**{**CHAT, **fields}), served.complete(prompt="x", **fields)):
        error = error_of(reply)
        assert (reply.status_code, error["param"]) == (400, param)
        assert why in str(error["message"]) and len(str(error["message"])) < 1000
    assert not served.engine.submitted


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_fails_in_the_engine_is_an_error_of_the_server(
    served: Served, stream: bool
) -> None:
    served.engine.script = lambda _: iter((100, -2))
    counted = 'quire:grammar_failures_total{engine="0"'
    before = served.metric(counted)
    reply = served.complete(prompt="x", max_tokens=3, guided_regex="a+", stream=stream)
    error = json.loads(events(reply)[-2])["error"] if stream else error_of(reply)
    assert (error["code"], "grammar" in str(error["message"])) == ("grammar_failed", True)
    assert reply.status_code == (200 if stream else 500)
    assert served.metric(counted) == before + 1


def test_structured_requests_are_counted(served: Served) -> None:
    counted = 'quire:structured_requests_total{engine="0",kind="regex"'
    timed = "quire:grammar_check_seconds_count"
    served.complete(prompt="x", max_tokens=1, guided_regex="a")
    before = served.metric(counted), served.metric(timed)
    served.complete(prompt="x", max_tokens=1, guided_regex="a", n=2)
    served.complete(prompt="x", max_tokens=1, guided_regex="(")
    served.complete(prompt="x", max_tokens=1)
    assert (served.metric(counted), served.metric(timed)) == (before[0] + 1, before[1] + 1)


def test_keywords_without_effect_are_warned_of(served: Served) -> None:
    reply = served.complete(prompt="x", max_tokens=1, guided_json={"minlength": 1})
    assert reply.headers["x-quire-warnings"].endswith("effect: 'guided_json.minlength'")


def test_a_schema_that_would_take_for_ever_is_refused_and_holds_nobody(served: Served) -> None:
    beside = {"maxProperties": 9}
    levels: dict[str, object] = {"40": {"type": "object"}}
    for level in range(40):
        link = {"$ref": f"#/$defs/{level + 1}", **beside}
        levels[str(level)] = {"type": "object", "properties": {"l": link, "r": link}}
    began_s = time.monotonic()
    reply = served.complete(prompt="x", guided_json={"$ref": "#/$defs/0", "$defs": levels})
    assert (reply.status_code, error_of(reply)["param"]) == (400, "guided_json")
    assert "takes more than 0.5 s" in str(error_of(reply)["message"])
    assert time.monotonic() - began_s < 60, "it holds for a machine that is busy"
    assert served.complete(prompt="x", max_tokens=1, guided_json={}).status_code == 200
