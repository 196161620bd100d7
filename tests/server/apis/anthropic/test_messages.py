"""`POST /v1/messages`: it runs what the same chat runs, and names faults in its own fields."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.anthropic.conversion import ModelReasoning, chat_input
from quire.server.apis.anthropic.protocol import CountTokensRequest, MessagesRequest
from quire.server.apis.protocol.unknown_fields import UnknownFields
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_reasoning import model_with
from tests.server.apis.openai.test_tools import says
from tests.server.served import (
    MODEL,
    Served,
    eventually,
    hold_after_first_token,
    plain_config,
    serving,
)

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
TOOL: dict[str, object] = {
    "name": "find",
    "input_schema": {"type": "object", "properties": {"n": {}}},
}
USE: dict[str, object] = {"type": "tool_use", "id": "call_1", "name": "find", "input": {"n": 7}}
RESULT: dict[str, object] = {"type": "tool_result", "tool_use_id": "call_1", "content": "found"}
ASKED: dict[str, object] = {"role": "user", "content": "Hello there"}
NO_MODEL = ModelReasoning(None, has_format=False)


def turn(role: str, *blocks: dict[str, object]) -> dict[str, object]:
    return {"role": role, "content": [*blocks]}


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


def messages_of(*turns: dict[str, object]) -> list[dict[str, object]]:
    unknown = UnknownFields(refuses=False)
    chat = chat_input(CountTokensRequest(messages=[*turns]), (), NO_MODEL, unknown)
    return [message.as_template_message() for message in chat.messages]


def post(served: Served, **fields: object) -> dict[str, object]:
    reply = served.client.post(MESSAGES, json={"messages": [ASKED], "max_tokens": 4, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, object] = reply.json()
    return body


SAID = st.lists(st.text(max_size=8), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), SAID), min_size=1))
@cases(50)
def test_turns_of_one_role_in_a_row_are_one_message(said: list[tuple[str, list[str]]]) -> None:
    whole: list[tuple[str, list[str]]] = []
    for role, texts in said:
        if not whole or whole[-1][0] != role:
            whole.append((role, []))
        whole[-1][1].extend(texts)
    messages = messages_of(*(turn(role, *map(text, texts)) for role, texts in said))
    assert messages == [{"role": role, "content": "\n".join(texts)} for role, texts in whole]


def test_results_of_tools_are_messages_of_their_own() -> None:
    thought: dict[str, object] = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    failed = RESULT | {"tool_use_id": "call_2", "is_error": True, "content": [text("a"), text("b")]}
    messages = messages_of(
        ASKED,
        turn("assistant", thought, text("Let me see."), USE, USE | {"id": "call_2"}),
        turn("user", RESULT, failed, text("And?")),
    )
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool", "user"]
    said, found, lost = messages[1:4]
    assert (said["content"], said["reasoning_content"]) == ("Let me see.", "Hm.")
    calls = said["tool_calls"]
    assert isinstance(calls, list)
    assert [call["function"]["arguments"] for call in calls] == [{"n": 7}] * 2
    assert (found["content"], found["tool_call_id"]) == ("found", "call_1")
    assert (lost["content"], lost["tool_call_id"]) == ("Error: a\nb", "call_2")


def test_it_says_what_the_chat_says(served: Served) -> None:
    chat = served.chat(
        messages=[{"role": "system", "content": "Be\nbrief."}, ASKED], max_tokens=4, seed=7
    ).json()
    asked = served.engine.submitted[-1]
    system = [text("Be") | {"cache_control": {"type": "ephemeral"}}, text("brief.")]
    body = post(served, system=system, seed=7)
    assert served.engine.submitted[-1].prompt_token_ids == asked.prompt_token_ids
    assert served.engine.submitted[-1].sampling == asked.sampling
    (choice,) = chat["choices"]
    assert body["content"] == [
        {"type": "text", "text": choice["message"]["content"], "citations": None}
    ]
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", MODEL)
    assert (body["stop_reason"], body["stop_sequence"]) == ("max_tokens", None)
    assert body["usage"] == {
        "input_tokens": chat["usage"]["prompt_tokens"] - 3,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 4,
    }


def test_sampling_reaches_the_engine(served: Served) -> None:
    post(served, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.5)
    sampling = served.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.5)


def test_an_answer_goes_on_with_the_last_message(served: Served, tokenizer: TextTokenizer) -> None:
    post(served, messages=[ASKED, turn("assistant", text("I am"))])
    assert prompt_text(served, tokenizer).endswith("<|assistant|>I am")


def test_the_stop_reason_says_why_it_ended(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says("one two three", tokenizer)
    ended = post(served, max_tokens=50)
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
    stopped = post(served, max_tokens=50, stop_sequences=["zwei", " two"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " two")
    assert stopped["content"] == [text("one") | {"citations": None}]


@pytest.mark.parametrize(
    "choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "find"}]
)
def test_a_call_is_a_block(
    served: Served, tokenizer: TextTokenizer, choice: dict[str, object]
) -> None:
    served.engine.script = says(
        '<tool_call>{"name": "find", "arguments": {"n": 7}}</tool_call>', tokenizer
    )
    body = post(served, max_tokens=90, tools=[TOOL], tool_choice=choice)
    content = body["content"]
    assert isinstance(content, list)
    assert content == [USE | {"id": content[0]["id"]}]
    assert body["stop_reason"] == "tool_use"


def test_one_tool_use_ends_the_output_where_more_are_not_wanted(
    served: Served, tokenizer: TextTokenizer
) -> None:
    call = '<tool_call>{"name": "find", "arguments": {}}</tool_call>'
    served.engine.script = says(call * 2, tokenizer)
    for one_call, num in ((True, 1), (False, 2)):
        choice = {"type": "auto", "disable_parallel_tool_use": one_call}
        body = post(served, max_tokens=90, tools=[TOOL], tool_choice=choice)
        assert isinstance(body["content"], list)
        assert len(body["content"]) == num


def test_a_call_that_is_cut_off_has_what_is_complete(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(
        '<tool_call>{"name": "find", "arguments": {"a": 1, "n": "so', tokenizer
    )
    body = post(served, max_tokens=90, tools=[TOOL], tool_choice={"type": "auto"})
    content = body["content"]
    assert isinstance(content, list)
    assert content[-1]["input"] == {"a": 1}


def test_the_text_is_of_a_schema(served: Served) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        post(served, max_tokens=20, **fields)
        assert "ok" in served.engine.submitted[-1].sampling.grammar


@pytest.mark.parametrize(
    ("thinking", "shown", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 7}, "[True]", 7),
        ({"type": "adaptive"}, "[True]", None),
        ({"type": "disabled"}, "[False]", None),
    ],
)
def test_the_model_is_told_whether_to_reason(
    tmp_path: Path, tokenizer: TextTokenizer, thinking: object, shown: str, budget: int | None
) -> None:
    with serving(plain_config(model_with(tmp_path / "model", "enable_thinking"))) as served:
        post(served, thinking=thinking)
        assert prompt_text(served, tokenizer).endswith(shown)
        given = served.engine.submitted[-1].sampling.thinking_budget
        assert (None if given is None else given.max_tokens) == budget


def test_reasoning_is_a_block_unless_it_is_omitted(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    with serving(plain_config(model_with(tmp_path / "model", opens=True))) as served:
        served.engine.script = says("Hm.</think>Yes.", tokenizer)
        body = post(served, max_tokens=50)
        content, usage = body["content"], body["usage"]
        assert isinstance(content, list) and isinstance(usage, dict)
        assert [(each["type"], each.get("thinking")) for each in content] == [
            ("thinking", "Hm."),
            ("text", None),
        ]
        assert content[0]["signature"]
        assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
        body = post(served, max_tokens=50, thinking={"type": "adaptive", "display": "omitted"})
        assert body["content"] == content[1:]


def test_null_is_not_given(served: Served) -> None:
    fields = dict.fromkeys(set(MessagesRequest.model_fields) - {"messages", "max_tokens"})
    post(served, **fields, container=None)


def test_what_has_no_effect_is_reported(served: Served) -> None:
    redacted: dict[str, object] = {"type": "redacted_thinking", "data": "x"}
    reply = served.client.post(
        MESSAGES,
        json={
            "messages": [ASKED, turn("assistant", redacted, text("Yes")), ASKED],
            "max_tokens": 1,
            "metadata": {"user_id": "x", "other": 1},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"effort": "max"},
            "tools": [TOOL | {"eager_input_streaming": False}],
        },
        headers={"anthropic-beta": "interleaved-thinking-2025-05-14", "anthropic-version": "x"},
    )
    assert reply.status_code == 200
    warnings = reply.headers["x-quire-warnings"]
    told = ("metadata", "messages[1].content[0]", "thinking", "output_config.effort")
    for name in (*told, "tools[0].eager_input_streaming"):
        assert name in warnings
    assert "anthropic-version" not in warnings and "interleaved" not in warnings


def test_few_of_many_are_named(served: Served) -> None:
    redacted: dict[str, object] = {"type": "redacted_thinking", "data": "x"}
    turns = [ASKED, turn("assistant", *[redacted] * 4000), ASKED]
    reply = served.client.post(MESSAGES, json={"messages": turns, "max_tokens": 1})
    assert reply.status_code == 200
    assert "messages[1].content[7], 3992 more" in reply.headers["x-quire-warnings"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_message_that_is_cancelled_says_so(served: Served, stream: bool) -> None:
    name = f"message-{stream}"
    asked = {"messages": [ASKED], "max_tokens": 90, "stream": stream}
    hold_after_first_token(served)
    try:
        with ThreadPoolExecutor(1) as pool:
            headers = {"x-request-id": name}
            reply = pool.submit(served.client.post, MESSAGES, json=asked, headers=headers)
            path = f"/v1/requests/{name}/cancel"
            assert eventually(lambda: served.client.post(path).status_code == 200)
            text = reply.result(20).text
    finally:
        served.do(served.engine.may_step.set)
    assert '"stop_reason":"abort"' in text


def test_what_agents_send_along_asks_for_nothing(served: Served) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    cached: dict[str, object] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tool = TOOL | cached | {"type": "custom"}
    used = USE | cached | {"caller": {"type": "direct"}}
    said = turn("assistant", text("Yes") | {"citations": None}, used)
    turns = [ASKED, said, turn("user", RESULT | cached)]
    fields = {
        "messages": turns,
        "tools": [tool],
        "context_management": edits,
        "cache_control": None,
    }
    body = {"max_tokens": 1, "system": [text("a") | cached], **fields}
    reply = served.client.post(f"{MESSAGES}?beta=true", json=body)
    assert reply.status_code == 200, reply.text
    assert "x-quire-warnings" not in reply.headers


def test_tokens_are_counted_and_nothing_runs(served: Served) -> None:
    asked = {"system": "Be brief.", "messages": [ASKED], "tools": [TOOL]}
    reply = served.client.post(COUNT, json=asked, headers={"anthropic-beta": "x"})
    assert "x-quire-warnings" not in reply.headers
    assert not served.engine.submitted
    usage = post(served, **asked)["usage"]
    assert isinstance(usage, dict)
    num_prompt = len(served.engine.submitted[-1].prompt_token_ids)
    assert reply.json() == {"input_tokens": num_prompt}
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_prompt
    long = {"messages": [ASKED | {"content": "word " * 5000}]}
    assert served.client.post(COUNT, json=long).json()["input_tokens"] > 5000
    error = served.client.post(COUNT, json=asked | {"max_tokens": 3}).json()["error"]
    assert error["details"]["param"] == "max_tokens"


def test_a_call_keeps_its_numbers(served: Served, tokenizer: TextTokenizer) -> None:
    given = '{"n": 123456789012345678901234567890, "x": 1.50}'
    served.engine.script = says(
        f'<tool_call>{{"name": "find", "arguments": {given}}}</tool_call>', tokenizer
    )
    reply = served.client.post(
        MESSAGES, json={"messages": [ASKED], "max_tokens": 90, "tools": [TOOL]}
    )
    (block,) = reply.json()["content"]
    assert block["input"] == json.loads(given)
