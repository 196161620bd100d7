"""`POST /v1/responses`: it runs what the same chat runs, and names faults in its own fields."""

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.responses.protocol import ResponsesRequest
from tests.profiles import cases
from tests.server.apis.responses.items import messages_of
from tests.server.served import MODEL, Served

RESPONSES = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look_up", "parameters": SCHEMA}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "Yes?"}]}
ASKED = {"role": "user", "content": "Hello there"}


@given(st.lists(st.tuples(st.sampled_from(["user", "system", "developer"]), st.text()), min_size=1))
@cases(50)
def test_messages_stay_as_they_are(said: list[tuple[str, str]]) -> None:
    items = [{"role": role, "content": text} for role, text in said]
    shown = [{"role": role.replace("developer", "system"), "content": text} for role, text in said]
    assert messages_of(*items) == shown
    parts = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
        for role, text in said
    ]
    assert messages_of(*parts) == shown


def test_a_turn_of_the_assistant_is_one_message() -> None:
    messages = messages_of(
        ASKED, REASONING, SAID, CALL, {**CALL, "call_id": "call_2"}, RESULT, SAID
    )
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]
    turn = messages[1]
    assert (turn["content"], turn["reasoning_content"]) == ("Yes?", "Hm.")
    calls = turn["tool_calls"]
    assert isinstance(calls, list)
    assert [call["id"] for call in calls] == ["call_1", "call_2"]


def test_a_turn_that_was_cut_within_its_reasoning_has_no_text() -> None:
    messages = messages_of(ASKED, REASONING, ASKED, REASONING, REASONING)
    assert [each["role"] for each in messages] == ["user", "assistant", "user"] + ["assistant"] * 2
    assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("", "Hm.")


def test_text_after_calls_is_of_the_turn_that_called() -> None:
    messages = messages_of(ASKED, SAID, CALL, {"role": "assistant", "content": "Soon."}, RESULT)
    assert [each["role"] for each in messages] == ["user", "assistant", "tool"]
    assert messages[1]["content"] == "Yes?\nSoon."
    assert [each["role"] for each in messages_of(ASKED, SAID, SAID)] == [
        "user",
        "assistant",
        "assistant",
    ]


def test_it_says_what_the_chat_says(served: Served) -> None:
    shared = {"temperature": 0, "top_logprobs": 2}
    chat = served.chat(messages=[ASKED], max_tokens=4, logprobs=True, **shared).json()
    prompt = served.engine.submitted[-1].prompt_token_ids
    asked = {"input": "Hello there", "max_output_tokens": 4, "metadata": {"a": "b"}, **shared}
    body = served.client.post(RESPONSES, json=asked).json()
    assert served.engine.submitted[-1].prompt_token_ids == prompt
    (item,), (choice,) = body["output"], chat["choices"]
    assert item["content"][0]["text"] == choice["message"]["content"]
    assert item["content"][0]["logprobs"] == choice["logprobs"]["content"]
    assert body["usage"]["output_tokens"] == chat["usage"]["completion_tokens"] == 4
    assert (body["status"], item["status"]) == ("incomplete", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (body["object"], body["store"], body["metadata"]) == ("response", True, {"a": "b"})


def test_the_openai_client_reads_it(served: Served) -> None:
    base = str(served.client.base_url).rstrip("/")
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as client:
        response = client.responses.create(
            model=MODEL, input="Hello there", instructions="Be brief.", max_output_tokens=4
        )
    assert response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + 4
    assert response.output[0].type == "message"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [ASKED, {"type": "item_reference", "id": "x"}]}, "input[1].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
        ({"input": [ASKED, {"role": "king", "content": ""}]}, "input[1].role"),
        ({"input": [ASKED, {"role": "user"}]}, "input[1].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [ASKED, SAID, {**CALL, "name": 3}, RESULT]}, "input[2].name"),
        ({"input": [ASKED, {"type": "function_call", "name": "x"}]}, "input[1].arguments"),
        ({"input": [ASKED, {**RESULT, "call_id": "other"}]}, "input[1].call_id"),
        ({"input": [ASKED, {**CALL, "arguments": '{"n": NaN}'}]}, "input[1].arguments"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"truncation": "middle"}, "truncation"),
        ({"tools": [{"type": "function", "name": 3}]}, "tools[0].name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "text.format.name"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"input": "word " * 5000}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"include_obfuscation": 0}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "stream": True}, "stream"),
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"max_tokens": 3}, "max_tokens"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_fault_is_named_as_the_client_wrote_it(
    served: Served, fields: dict[str, object], param: str
) -> None:
    reply = served.client.post(RESPONSES, json={"input": "x", **fields})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert "messages" not in error["message"]


def test_a_websocket_is_told_to_go_on_over_http(served: Served) -> None:
    handshake = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for _ in range(2):  # the connection goes on
        reply = served.client.get(RESPONSES, headers=handshake)
        assert (reply.status_code, reply.headers["upgrade"]) == (426, "HTTP/1.1")
        assert reply.json()["error"]["code"] == "no_websocket"
    assert served.client.get(RESPONSES).status_code == 405
    assert served.client.get("/v1/nothing", headers=handshake).status_code == 404


def test_null_is_not_given(served: Served) -> None:
    fields = dict.fromkeys(set(ResponsesRequest.model_fields) - {"input"})
    asked = {"input": "x", "store": None, **fields}
    served.client.post(RESPONSES, json=asked).raise_for_status()


def test_what_has_no_effect_is_reported(served: Served) -> None:
    asked = {
        "input": "x",
        "max_output_tokens": 1,
        "reasoning": {"summary": "auto", "context": "auto"},
        "text": {"verbosity": "low"},
        "include": [
            "file_search_call.results",
            "reasoning.encrypted_content",
            "message.output_text.logprobs",
        ],
        "max_tool_calls": 3,
        "service_tier": "auto",
        "client_metadata": {"a": "b"},
    }
    told = served.client.post(RESPONSES, json=asked).headers["x-quire-warnings"]
    for name in ("reasoning.summary", "text.verbosity", "file_search_call", "service_tier"):
        assert name in told
    assert "max_tool_calls" in told
    assert "encrypted_content" not in told
    assert "client_metadata" in told
    assert "logprobs" not in told
    asked = {"input": "x", "max_output_tokens": 1, "text": {"verbosity": "medium"}}
    assert "x-quire-warnings" not in served.client.post(RESPONSES, json=asked).headers
