"""A schema that is not enforced in full is told, and finished values are checked against all of it:
every API says so, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_errors import error_of
from tests.server.apis.openai.test_streaming import events
from tests.server.apis.openai.test_tools import HELLO, says
from tests.server.scripted_engine import FACTS
from tests.server.served import MODEL, Served, eventually, plain_config, serving

SCHEMA: Any = {
    "type": "object",
    "properties": {"n": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    "required": ["n"],
}
LOST = "properties.n.uniqueItems"
RIGHT, WRONG = '{"n": [1, 2]}', '{"n": [1, 1]}'
SLOW: Any = {"type": "string", "pattern": "^(?!b)(a+)+$"}
REMOTE: Any = {"$ref": "http://127.0.0.1:9/x"}
MESSAGES: Any = {"messages": HELLO, "max_tokens": 100}


@pytest.fixture(scope="module")
def module_server() -> Iterator[Served]:
    """A server with room for tools."""
    with serving(plain_config(), loaded=False) as served:
        served.engine.ready_facts = msgspec.structs.replace(FACTS, max_model_len=1024)
        served.do(served.engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200, 30)
        yield served


def format_of(schema: object, **fields: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("schema", "written", "is_valid"),
    [
        (SCHEMA, RIGHT, True),
        (SCHEMA, WRONG, False),
        (SCHEMA, '{"n": [1', False),
        (SLOW, '"aa"', True),
        (SLOW, f'"{"a" * 60}b"', None),
        (REMOTE, "1", None),
    ],
)
def test_the_finished_value_is_checked(
    served: Served, tokenizer: TextTokenizer, schema: Any, written: str, is_valid: bool | None
) -> None:
    served.engine.script = says(written, tokenizer)
    asked = {**MESSAGES, "response_format": format_of(schema)}
    whole = served.chat(**asked)
    assert whole.json()["choices"][0]["quire"] == {"schema_valid": is_valid}
    assert whole.headers["x-quire-ignored"].startswith("response_format.json_schema.schema.")
    told = [json.loads(each) for each in events(served.chat(**asked, stream=True))[:-1]]
    choices = [choice for each in told for choice in each["choices"]]
    assert [each.get("quire") for each in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["quire"] == {"schema_valid": is_valid} and choices[-1]["finish_reason"]


def test_a_schema_whose_check_takes_too_long_is_not_checked_again(
    served: Served, tokenizer: TextTokenizer
) -> None:
    schema = {**SLOW, "pattern": "^(?!c)(a+)+$"}
    found = []
    for written in ('"aa"', f'"{"a" * 60}b"', '"aa"'):
        served.engine.script = says(written, tokenizer)
        reply = served.chat(**MESSAGES, response_format=format_of(schema))
        found.append(reply.json()["choices"][0]["quire"]["schema_valid"])
    assert found == [True, None, None]


def test_each_choice_of_a_completion_is_checked_and_counted(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(WRONG, tokenizer)
    counted = f'quire:loosened_outputs_total{{engine="0",model_name="{MODEL}",validity="invalid"'
    before = served.metric(counted)
    reply = served.complete(prompt="x", max_tokens=100, n=2, guided_json=SCHEMA)
    assert [each["quire"] for each in reply.json()["choices"]] == [{"schema_valid": False}] * 2
    assert reply.headers["x-quire-ignored"] == f"guided_json.{LOST}"
    assert served.metric(counted) == before + 2


def test_responses_and_messages_say_it_in_their_form(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(RIGHT, tokenizer)
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    asked: Any = {"input": "Hi", "text": {"format": form}, "store": False}
    response = served.client.post("/v1/responses", json=asked)
    assert response.json()["quire"] == {"schema_valid": True}
    assert response.headers["x-quire-ignored"] == f"text.format.schema.{LOST}"
    told = events(served.client.post("/v1/responses", json={**asked, "stream": True}))
    assert json.loads(told[-1].partition("data: ")[2])["response"]["quire"] == {
        "schema_valid": True
    }
    asked = {"messages": HELLO, "max_tokens": 100, "output_config": {"format": {**form}}}
    del asked["output_config"]["format"]["name"]
    message = served.client.post("/v1/messages", json=asked)
    assert message.json()["quire"] == {"schema_valid": True}
    told = events(served.client.post("/v1/messages", json={**asked, "stream": True}))
    parts = [each.partition("data: ")[2] for each in told]
    (end,) = [json.loads(each) for each in parts if '"message_delta"' in each]
    assert end["quire"] == {"schema_valid": True}


@pytest.mark.parametrize(("arguments", "is_valid"), [(RIGHT, True), (WRONG, False)])
def test_arguments_of_enforced_calls_are_checked(
    served: Served, tokenizer: TextTokenizer, arguments: str, is_valid: bool
) -> None:
    call = f'<tool_call>\n{{"name": "find", "arguments": {arguments}}}\n</tool_call>'
    served.engine.script = says(call, tokenizer)
    tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
    reply = served.chat(**MESSAGES, tools=[tool], tool_choice="required")
    (choice,) = reply.json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "find"
    assert choice["quire"] == {"schema_valid": is_valid}
    assert reply.headers["x-quire-ignored"] == f"tools[0].function.parameters.{LOST}"
    free = served.chat(**MESSAGES, tools=[tool])
    assert "quire" not in free.json()["choices"][0] and "x-quire-ignored" not in free.headers


def test_a_promise_is_kept_or_refused(served: Served, tokenizer: TextTokenizer) -> None:
    strict = format_of(SCHEMA, strict=True)
    error = error_of(served.chat(**MESSAGES, response_format=strict))
    assert error["param"] == f"response_format.json_schema.schema.{LOST}"
    served.engine.script = says(RIGHT, tokenizer)
    enforced = format_of({"type": "object", "required": ["n"]})
    reply = served.chat(**MESSAGES, response_format=enforced)
    assert "quire" not in reply.json()["choices"][0] and "x-quire-ignored" not in reply.headers


def test_what_no_grammar_can_hold_is_loosened_further(served: Served) -> None:
    entry = {"type": "object", "properties": {"v": {"type": "string", "maxLength": 1}}}
    schema = {
        "$ref": "#/$defs/value",
        "$defs": {
            "value": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/entry"}]},
            "entry": {**entry, "allOf": [{"$ref": "#/$defs/map"}]},
            "map": {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
        },
    }
    reply = served.chat(**MESSAGES, response_format=format_of(schema))
    path = "response_format.json_schema.schema.$defs.entry.allOf[0].$ref"
    assert (reply.status_code, reply.headers["x-quire-ignored"]) == (200, path)
    strict = served.chat(**MESSAGES, response_format=format_of(schema, strict=True))
    assert strict.status_code == 400
