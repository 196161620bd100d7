"""Tools and reasoning in chat: what is asked, what the model is told, how calls are answered."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import openai
import pytest

from quire.scheduler.request import NewRequest
from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_chat import prompt_text
from tests.server.apis.openai.test_streaming import chunks
from tests.server.scripted_engine import FACTS
from tests.server.served import BUNDLED, MODEL, Served, plain_config, serving, with_model

HELLO = [{"role": "user", "content": "Hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "find", "arguments": {"n": 7}}</tool_call>'
CALLED = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
RESULT = {"role": "tool", "content": "found", "tool_call_id": "call_1"}


def says(text: str, tokenizer: TextTokenizer) -> Callable[[NewRequest], Iterator[int]]:
    """A script that draws a text, then the end of the sequence."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return lambda _: iter((*ids, FACTS.eos_token_ids[0]))


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose chat template opens the reasoning of every answer."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    copytree(BUNDLED, folder)
    template = folder / "chat_template.jinja"
    shown = template.read_text().replace("'<|assistant|>' if", "'<|assistant|><think>\\n' if")
    template.write_text(shown + "{# </think> #}")
    with serving(plain_config(str(folder))) as served:
        yield served


def test_a_call_is_answered_whole_and_streamed(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says(f"Let me see.\n{CALL}\n{CALL}", tokenizer)
    body = served.chat(messages=HELLO, tools=[function(name="find")]).json()
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Let me see.")
    calls = choice["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"arguments": '{"n": 7}', "name": "find"}] * 2
    assert len({call["id"] for call in calls}) == 2
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            tools=[{"type": "function", "function": {"name": "find"}}],
            stream=True,
        )
        choices = [chunk.choices[0] for chunk in stream]
    parts = [call for each in choices for call in each.delta.tool_calls or []]
    assert "".join(each.delta.content or "" for each in choices) == "Let me see."
    assert choices[-1].finish_reason == "tool_calls"
    for index in (0, 1):
        first, *more = [part.function for part in parts if part.index == index]
        assert first is not None and first.name == "find"
        texts = [each.arguments or "" for each in (first, *more) if each is not None]
        assert (json.loads("".join(texts)), len(texts) > 1) == ({"n": 7}, True)


def test_one_call_ends_the_output_where_more_are_not_wanted(
    served: Served, tokenizer: TextTokenizer
) -> None:
    served.engine.script = says(CALL + CALL, tokenizer)
    reply = served.chat(messages=HELLO, tools=[TOOL], parallel_tool_calls=False).json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)
    assert choice["message"]["content"] is None
    assert len(served.engine.aborted) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": []}])
def test_without_tools_a_text_is_no_call(
    served: Served, tokenizer: TextTokenizer, fields: dict[str, object]
) -> None:
    served.engine.script = says(CALL, tokenizer)
    (choice,) = served.chat(messages=HELLO, **fields).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)
    assert "find" not in prompt_text(served, tokenizer)


def test_the_template_shows_tools_calls_and_results(
    served: Served, tokenizer: TextTokenizer
) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    served.chat(messages=[*HELLO, said, RESULT], tools=[TOOL], max_tokens=1)
    text = prompt_text(served, tokenizer)
    assert '"name": "find", "description": "", "parameters": {"type": "object"' in text
    assert '<|assistant|><tool_call>{"name": "find", "arguments": {}}</tool_call><|end|>' in text
    assert "<|user|><tool_response>found</tool_response><|end|>" in text


@pytest.mark.parametrize("arguments", ['{"n": [7', "[]", "7", "no JSON"])
def test_a_call_that_broke_off_is_shown_as_it_was(
    served: Served, tokenizer: TextTokenizer, arguments: str
) -> None:
    call = CALLED | {"function": {"name": "find", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    reply = served.chat(messages=[*HELLO, said, RESULT], tools=[TOOL], max_tokens=1)
    assert reply.status_code == 200
    shown = json.dumps(arguments)
    assert f'<tool_call>{{"name": "find", "arguments": {shown}}}' in prompt_text(served, tokenizer)


def function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": fields}


def allowed(mode: str, *names: str) -> dict[str, object]:
    tools = [function(name=name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def called(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "assistant", "tool_calls": [CALLED | fields]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [function()]}, "tools[0].function.name"),
        ({"tools": [function(name="")]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "x", "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [function(name="a", parameters=[])]}, "tools[0].function.parameters"),
        (
            {"tools": [function(name="a", parameters={"type": "string"})]},
            "tools[0].function.parameters.type",
        ),
        (
            {"tools": [function(name="a", parameters={"properties": 1})]},
            "tools[0].function.parameters.properties",
        ),
        ({"tools": [TOOL], "tool_choice": function(name="b")}, "tool_choice.function.name"),
        (
            {"tools": [TOOL], "tool_choice": allowed("auto", "find", "b")},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": [TOOL], "tool_choice": allowed("all", "find")}, "tool_choice.allowed_tools"),
        ({"tools": [TOOL], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools"),
        ({"tools": [TOOL], "tool_choice": "all"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [function(name="a", strict="yes")]}, "tools[0].function.strict"),
        ({"messages": [*HELLO, RESULT]}, "messages[1].tool_call_id"),
        (called(id=""), "messages[0].tool_calls[0].id"),
        (
            called(function={"name": "find", "arguments": {}}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [CALLED]}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    served: Served, fields: dict[str, object], param: str
) -> None:
    reply = served.chat(**{"messages": HELLO, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "arguments", ['{"n": NaN}', '{"n": [-Infinity', '{"n": 1e999}', "-1e999", '{"n": Infinity}']
)
@pytest.mark.parametrize("field", ["tool_calls", "function_call"])
def test_numbers_that_are_not_finite_are_no_arguments(
    served: Served, field: str, arguments: str
) -> None:
    """Templates would show the model what is no JSON."""
    called = {"name": "find", "arguments": arguments}
    given = {"tool_calls": [CALLED | {"function": called}], "function_call": called}
    said = {"role": "assistant", "content": None, field: given[field]}
    error = served.chat(messages=[*HELLO, said]).json()["error"]
    where = {"tool_calls": "tool_calls[0].function", "function_call": "function_call"}[field]
    assert (error["param"], "not finite" in error["message"]) == (
        f"messages[1].{where}.arguments",
        True,
    )


def test_a_template_without_a_place_for_tools_is_told_of(tmp_path: Path) -> None:
    """Where the server is to read calls in a format that the template does not show."""
    folder = tmp_path / "model"
    copytree(BUNDLED, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    with serving(with_model(plain_config(str(folder)), tool_call_parser="hermes")) as served:
        error = served.chat(messages=HELLO, tools=[TOOL]).json()["error"]
        assert (error["param"], "--tool-call-parser generic" in error["message"]) == ("tools", True)
        said = {"role": "assistant", "tool_calls": [CALLED]}
        error = served.chat(messages=[*HELLO, said]).json()["error"]
        assert error["param"] == "messages[1].tool_calls[0]"
        assert served.chat(messages=HELLO, max_tokens=1).status_code == 200


def test_a_model_whose_calls_cannot_be_read_may_be_made_to_call(tokenizer: TextTokenizer) -> None:
    """Then in the most common format."""
    with serving(with_model(plain_config(), tool_call_parser="none")) as served:
        error = served.chat(messages=HELLO, tools=[TOOL]).json()["error"]
        assert (error["param"], "--tool-call-parser" in error["message"]) == ("tools", True)
        served.engine.script = says(CALL, tokenizer)
        reply = served.chat(messages=HELLO, tools=[TOOL], tool_choice="required").json()
        assert len(reply["choices"][0]["message"]["tool_calls"]) == 1


def test_reasoning_is_separate_and_counted(
    thinking_server: Served, tokenizer: TextTokenizer
) -> None:
    served = thinking_server
    served.engine.script = says(f"Is it?\n</think>\n\nIt is.\n{CALL}", tokenizer)
    body = served.chat(messages=HELLO, tools=[TOOL]).json()
    message = body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("It is.", "Is it?")
    assert message["reasoning"] == message["reasoning_content"]
    assert len(message["tool_calls"]) == 1
    num_thought = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    thought = tokenizer.encode("Is it?\n</think>", add_special_tokens=False)
    assert len(thought) <= num_thought <= len(thought) + 1
    streamed = chunks(served.chat(messages=HELLO, tools=[TOOL], stream=True))
    deltas = [each["choices"][0]["delta"] for each in streamed]  # type: ignore[index]
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Is it?"
    assert "".join(each.get("content", "") for each in deltas) == "It is."
    body = served.chat(messages=HELLO, include_reasoning=False).json()
    message = body["choices"][0]["message"]
    assert (message["content"], "reasoning_content" in message) == (f"It is.\n{CALL}", False)


@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}], ids=["alone", "beside tools"])
def test_an_enforced_answer_keeps_the_tags_in_it(
    thinking_server: Served, tokenizer: TextTokenizer, tools: dict[str, object]
) -> None:
    served, answer = thinking_server, json.dumps({"t": "<think>a <tool_call>"})
    served.engine.script = says(f"Is it?\n</think>\n\n{answer}", tokenizer)
    asked = {"messages": HELLO, "response_format": {"type": "json_object"}, **tools}
    (choice,) = served.chat(**asked).json()["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (answer, "Is it?")
    assert (choice["finish_reason"], message.get("tool_calls")) == ("stop", None)
    streamed = chunks(served.chat(**asked, stream=True))
    deltas = [each["choices"][0]["delta"] for each in streamed]  # type: ignore[index]
    assert "".join(each.get("content", "") for each in deltas) == answer
