"""A call that the end of an output cuts within its arguments is no reason to run tools: every API
says so, whole and streamed, in a form that its own client reads."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_streaming import chunks
from tests.server.apis.openai.test_tools import CALL, HELLO, TOOL, says
from tests.server.scripted_engine import FACTS
from tests.server.served import MODEL, Served, eventually, plain_config, serving

CUT = f'{CALL}\n<tool_call>{{"name": "find", "arguments": {{"m": 7, "n": "so'
"""A whole call, and one that ends within its arguments."""
ARGUMENTS = ['{"n": 7}', '{"m": 7, "n": "so']
MISTAKE = '<tool_call>{"name": "find", "arguments": {"n": nothing'
FUNCTION: Any = {"type": "function", "name": "find", "parameters": {}, "strict": False}
OLD: Any = {"name": "find", "parameters": {}}
MESSAGE_TOOL: Any = {"name": "find", "input_schema": {"type": "object"}}
ENDINGS = pytest.mark.parametrize("ending", ["end token", "stop string", "length"])


@pytest.fixture(scope="module")
def module_server() -> Iterator[Served]:
    """A server with room for a history of calls."""
    with serving(plain_config(), loaded=False) as served:
        served.engine.ready_facts = msgspec.structs.replace(FACTS, max_model_len=1024)
        served.do(served.engine.starts.set)
        assert eventually(lambda: served.client.get("/readyz").status_code == 200, 30)
        yield served


def say_cut(served: Served, tokenizer: TextTokenizer, ending: str) -> int:
    """Have the engine write the cut call so that the output ends thus; return its limit."""
    ids = tokenizer.encode(CUT, add_special_tokens=False)
    more = tokenizer.encode("STOP me", add_special_tokens=False)
    script = ids if ending == "end token" else ids + more
    served.engine.script = lambda _: iter((*script, FACTS.eos_token_ids[0]))
    return len(ids) if ending == "length" else 200


def openai_client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@ENDINGS
def test_a_chat_ends_for_another_reason_than_its_calls(
    served: Served, tokenizer: TextTokenizer, ending: str
) -> None:
    limit = say_cut(served, tokenizer, ending)
    tool: Any = TOOL
    asked: Any = {"model": MODEL, "messages": HELLO, "tools": [tool], "stop": ["STOP"]}
    with openai_client(served) as client:
        (whole,) = client.chat.completions.create(**asked, max_tokens=limit).choices
        stream = client.chat.completions.create(**asked, max_tokens=limit, stream=True)
        choices = [chunk.choices[0] for chunk in stream]
    reason = "length" if ending == "length" else "stop"
    assert (whole.finish_reason, choices[-1].finish_reason) == (reason, reason)
    calls = [each.to_dict() for each in whole.message.tool_calls or []]
    assert [each["function"]["arguments"] for each in calls] == ARGUMENTS
    assert [each.get("status") for each in calls] == [None, "incomplete"]
    parts = [part for each in choices for part in each.delta.tool_calls or []]
    marks = [part.index for part in parts if part.to_dict().get("status") == "incomplete"]
    assert marks == [1]
    texts = [part.function.arguments or "" for part in parts if part.function and part.index == 1]
    assert "".join(texts) == ARGUMENTS[1]


def test_a_chat_goes_on_after_a_call_that_broke_off(
    served: Served, tokenizer: TextTokenizer
) -> None:
    """The message is sent back as it came, and its call answered by what went wrong."""
    served.engine.script = says(CUT, tokenizer)
    message = served.chat(messages=HELLO, tools=[TOOL]).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "no JSON"}
        for call in message["tool_calls"]
    ]
    reply = served.chat(messages=[*HELLO, message, *results], tools=[TOOL], max_tokens=1)
    assert reply.status_code == 200, reply.text


def test_a_call_with_a_mistake_in_it_is_no_reason_either(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(MISTAKE, tokenizer)
    (choice,) = served.chat(messages=HELLO, tools=[TOOL]).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["status"]) == ("stop", "incomplete")
    assert choice["message"]["content"] == "othing"


def test_an_old_function_that_is_cut_is_not_called(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(MISTAKE, tokenizer)
    reply = served.chat(messages=HELLO, functions=[OLD])
    assert reply.json()["choices"][0]["finish_reason"] == "stop"
    streamed = chunks(served.chat(messages=HELLO, functions=[OLD], stream=True))
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"  # type: ignore[index]


@pytest.mark.parametrize("ending", ["end token", "length"])
def test_the_item_of_a_call_that_is_cut_is_incomplete(
    served: Served, tokenizer: TextTokenizer, ending: str
) -> None:
    limit = say_cut(served, tokenizer, ending)
    asked: Any = {"model": MODEL, "input": "Hi", "tools": [FUNCTION], "max_output_tokens": limit}
    with openai_client(served) as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
    streamed: Any = events[-1]
    for response in (whole, streamed.response):
        assert [each.status for each in response.output] == ["completed", "incomplete"]
        assert [json.loads(response.output[0].arguments)] == [{"n": 7}]
        assert response.output[1].arguments == ARGUMENTS[1]
        assert response.status == ("completed" if ending == "end token" else "incomplete")
    kinds = [each.type for each in events]
    assert kinds.count("response.function_call_arguments.done") == 1
    assert kinds.count("response.output_item.done") == 2


def test_a_whole_call_is_completed_though_the_response_is_cut(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(f"{CALL} and more", tokenizer)
    limit = len(tokenizer.encode(CALL, add_special_tokens=False))
    asked = {"input": "Hi", "tools": [FUNCTION], "max_output_tokens": limit}
    body = served.client.post("/v1/responses", json=asked).json()
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "completed")


@ENDINGS
def test_a_message_with_a_call_that_is_cut_wants_no_tool_used(
    served: Served, tokenizer: TextTokenizer, ending: str
) -> None:
    limit = say_cut(served, tokenizer, ending)
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": limit,
        "tools": [MESSAGE_TOOL],
        "stop_sequences": ["STOP"],
    }
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    reason = {"end token": "end_turn", "stop string": "stop_sequence", "length": "max_tokens"}
    messages: list[Any] = [whole, streamed]
    for message in messages:
        assert message.stop_reason == reason[ending]
        inputs = [each.input for each in message.content if each.type == "tool_use"]
        assert inputs == [{"n": 7}, {"m": 7}]
