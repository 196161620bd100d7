"""`functions` and `function_call` of older clients: what they ask, and how they are answered."""

import json

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_streaming import chunks
from tests.server.apis.openai.test_tools import CALL, CALLED, HELLO, RESULT, TOOL, says
from tests.server.served import Served

FUNCTION = TOOL["function"]
REFERS = {"name": "look", "parameters": {"properties": {"x": {"$ref": "#/$defs/none"}}}}
OLD_CALL = {"name": "find", "arguments": "{}"}
ASKED = {"role": "assistant", "content": None, "function_call": OLD_CALL}
FOUND = {"role": "function", "name": "find", "content": "found"}


@pytest.mark.parametrize("said", ["", "Let me see.\n", "a < b "])
@pytest.mark.parametrize("num_calls", [1, 3])
def test_a_call_is_answered_whole_and_streamed(
    served: Served, tokenizer: TextTokenizer, said: str, num_calls: int
) -> None:
    served.engine.script = says(said + CALL * num_calls, tokenizer)
    fields = {"messages": HELLO, "functions": [FUNCTION]}
    (choice,) = served.chat(**fields).json()["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], "tool_calls" in message) == ("function_call", False)
    assert message["function_call"] == {"name": "find", "arguments": '{"n": 7}'}
    assert message["content"] == (said.strip() or None)
    streamed = [each["choices"][0] for each in chunks(served.chat(**fields, stream=True))]  # type: ignore[index]
    deltas = [each["delta"] for each in streamed]
    calls = [each["function_call"] for each in deltas if "function_call" in each]
    assert [call["name"] for call in calls if "name" in call] == ["find"]
    assert "".join(call["arguments"] for call in calls) == '{"n": 7}'
    assert "".join(each.get("content") or "" for each in deltas) == said.strip()
    assert streamed[-1]["finish_reason"] == "function_call"


def test_the_prompt_is_that_of_tools(served: Served, tokenizer: TextTokenizer) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    served.chat(messages=[*HELLO, said, RESULT], tools=[TOOL], max_tokens=1)
    wanted = prompt_text(served, tokenizer)
    served.chat(messages=[*HELLO, ASKED, FOUND], functions=[FUNCTION], max_tokens=1)
    assert prompt_text(served, tokenizer) == wanted
    served.chat(messages=HELLO, functions=[FUNCTION], function_call="none", max_tokens=1)
    assert "find" not in prompt_text(served, tokenizer)


def test_what_asks_for_nothing_passes(served: Served) -> None:
    empty: list[dict[str, object]]
    empty = [{"functions": []}, {"function_call": "none"}, {"function_call": None}]
    for fields in empty:
        assert served.chat(messages=HELLO, max_tokens=1, **fields).status_code == 200
    assert served.chat(messages=HELLO, max_tokens=1, tools=[TOOL], functions=[]).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [FUNCTION], "tools": [TOOL]}, "functions"),
        ({"functions": [FUNCTION], "tool_choice": "auto"}, "functions"),
        ({"function_call": "auto", "tools": [TOOL]}, "function_call"),
        ({"functions": [FUNCTION], "parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"functions": [FUNCTION, FUNCTION]}, "functions[1].name"),
        ({"functions": [{"name": ""}]}, "functions[0].name"),
        (
            {"functions": [{"name": "a", "parameters": {"type": "string"}}]},
            "functions[0].parameters.type",
        ),
        ({"functions": [FUNCTION], "function_call": {"name": "b"}}, "function_call.name"),
        (
            {"functions": [REFERS], "function_call": {"name": "look"}},
            "functions[0].parameters.properties.x.$ref",
        ),
        ({"functions": [FUNCTION], "function_call": "required"}, "function_call"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [*HELLO, FOUND]}, "messages[1].name"),
        ({"messages": [ASKED, FOUND | {"name": None}]}, "messages[1].name"),
        ({"messages": [{"role": "user", "content": "", "function_call": OLD_CALL}]}, None),
        ({"messages": [ASKED | {"tool_calls": [CALLED]}]}, "messages[0].function_call"),
        (
            {"messages": [ASKED | {"function_call": {"name": "a", "arguments": 1}}]},
            "messages[0].function_call.arguments",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    served: Served, fields: dict[str, object], param: str | None
) -> None:
    reply = served.chat(**{"messages": HELLO, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param or "messages[0].function_call")
    assert "'tool" not in error["message"] or "tools" in fields or "tool_c" in json.dumps(fields)
