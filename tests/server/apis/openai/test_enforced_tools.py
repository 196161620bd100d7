"""Tool calls that clients require: what the engine is told, and how calls are answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

from quire.server.text.tokenizer import TextTokenizer
from tests.server.apis.openai.test_structured_outputs import schema_format
from tests.server.apis.openai.test_tools import HELLO, TOOL, allowed, function, says
from tests.server.grammars.matching import accepts
from tests.server.served import BUNDLED, Served, plain_config, serving

FIND = '<tool_call>\n{"name": "find", "arguments": {"n": 7}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TOOLS = [TOOL, function(name="now")]
NAMED = function(name="now")
COUNT = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRICT = [TOOL, function(name="a", parameters=COUNT, strict=True)]
A = '<tool_call>{"name": "a", "arguments": {"n": 7}}</tool_call>'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose template says little of tools: the scripted engine's context is short."""
    folder = tmp_path_factory.mktemp("terse") / "model"
    copytree(BUNDLED, folder)
    template = "{{ tools | length if tools }}{{ messages[0].content }}{# <tool_call> #}"
    (folder / "chat_template.jinja").write_text(template)
    with serving(plain_config(str(folder))) as served:
        yield served


@pytest.fixture
def served(server: Served) -> Served:
    server.engine.submitted.clear()
    return server


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"tool_choice": "required"}, (FIND, NOW, f"{FIND}\n{NOW}"), ("Hi", f"Hi {NOW}", "")),
        ({"tool_choice": "required"}, (), (FIND.replace("7", '"7"'), FIND.replace("find", "a"))),
        ({"tool_choice": "required", "parallel_tool_calls": False}, (NOW,), (NOW + NOW,)),
        ({"tool_choice": NAMED}, (NOW,), (FIND, NOW + NOW, "Hi")),
        ({"tool_choice": allowed("auto", "now")}, (NOW, "Hi", f"Hi {NOW}"), (FIND, f"Hi {FIND}")),
        ({"tool_choice": allowed("required", "now")}, (NOW + NOW,), (FIND, "Hi")),
        ({"tools": STRICT}, (A, f"Hi {A}", "Hi", FIND, f"{A} so {A}"), (A.replace("7", "true"),)),
        (
            {"tools": STRICT, "parallel_tool_calls": False},
            (A, "Hi", FIND),
            (A + A, f"Hi {A.replace('7', '')}"),
        ),
        (
            {"response_format": schema_format({"type": "boolean"})},
            ("true", FIND, FIND + NOW),
            ("Hi", f"true{FIND}", "7"),
        ),
        (
            {"response_format": schema_format({"type": "boolean"}), "tool_choice": "required"},
            (FIND,),
            ("true",),
        ),
        ({"response_format": {"type": "json_object"}, "tool_choice": "none"}, ("{}",), (FIND,)),
    ],
)
def test_the_engine_is_told_what_calls_must_be_of(
    served: Served, fields: dict[str, object], right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 1, **fields}
    assert served.chat(**body).status_code == 200
    grammar = served.engine.submitted[-1].sampling.grammar
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("opening", "right", "wrong"),
    [
        ("<think>\n", (f"Is it? {FIND}</think>\n\n{NOW}",), (NOW, "</think>Hi")),
        ("", (f"<think>Is it?</think>{NOW}", NOW), (f"Is it?</think>{NOW}", "<think></think>Hi")),
    ],
)
def test_reasoning_comes_before_required_calls(
    tmp_path: Path, opening: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    """Whether the template opens it or the model does."""
    folder = tmp_path / "model"
    copytree(BUNDLED, folder)
    template = "{{ tools | length if tools }}{{ messages[0].content }}{# <tool_call> </think> #}"
    (folder / "chat_template.jinja").write_text(template + opening)
    with serving(plain_config(str(folder))) as served:
        body = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_tokens": 1}
        assert served.chat(**body).status_code == 200
        grammar = served.engine.submitted[-1].sampling.grammar
    assert [text for text in right if not accepts(grammar, text)] == []
    assert [text for text in wrong if accepts(grammar, text)] == []


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_calls_that_nobody_requires_are_of_no_grammar(served: Served, choice: str | None) -> None:
    served.chat(messages=HELLO, tools=TOOLS, max_tokens=1, tool_choice=choice)
    assert served.engine.submitted[-1].sampling.grammar == ""


@pytest.mark.parametrize(("choice", "finish_reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_a_named_call_is_no_reason_to_end(
    served: Served, tokenizer: TextTokenizer, choice: object, finish_reason: str
) -> None:
    """The model did not choose to call, as OpenAI and vLLM have it."""
    served.engine.script = says(NOW, tokenizer)
    reply = served.chat(messages=HELLO, tools=TOOLS, tool_choice=choice, n=2).json()
    choices = reply["choices"]
    assert [each["finish_reason"] for each in choices] == [finish_reason] * 2
    calls = [call for each in choices for call in each["message"]["tool_calls"]]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{}, {}]
    assert len({call["id"] for call in calls}) == 2


def test_calls_are_counted(served: Served, tokenizer: TextTokenizer) -> None:
    counted = [f'quire:tool_calls_total{{end="{end}",engine="0"' for end in ("whole", "broken")]
    before = [served.metric(each) for each in counted]
    served.engine.script = says(NOW + FIND[:-20], tokenizer)
    reply = served.chat(messages=HELLO, tools=TOOLS).json()
    assert len(reply["choices"][0]["message"]["tool_calls"]) == 2
    assert [served.metric(each) for each in counted] == [number + 1 for number in before]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": STRICT, "min_tokens": 1}, "min_tokens"),
        ({"tool_choice": NAMED, "max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_does_not_go_with_required_calls_is_named(
    served: Served, fields: dict[str, object], param: str
) -> None:
    reply = served.chat(**{"messages": HELLO, "tools": TOOLS, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"not": {}}, ""),
        ({"properties": {"n": {"$ref": "#/$defs/none"}}}, ".properties.n.$ref"),
        ({"properties": {"n": False}, "required": ["n"]}, ""),
        ({"properties": {"n": {"type": "text"}}}, ".properties.n.type"),
        ({"required": "n"}, ".required"),
    ],
)
def test_a_schema_that_no_call_can_follow_is_named(
    served: Served, schema: dict[str, object], path: str
) -> None:
    tools = [TOOL, function(name="a", parameters=schema, strict=True)]
    error = served.chat(messages=HELLO, tools=tools).json()["error"]
    assert error["param"] == f"tools[1].function.parameters{path}"
    tools = [TOOL, function(name="a", parameters=schema)]
    assert served.chat(messages=HELLO, tools=tools, max_tokens=1).status_code == 200
    error = served.chat(messages=HELLO, tools=tools, tool_choice="required").json()["error"]
    assert error["param"] == f"tools[1].function.parameters{path}"


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"n": {"type": "string", "pattern": "("}}}, ".properties.n.pattern"),
        (
            {"properties": {"n": {"type": "array", "uniqueItems": True}}},
            ".properties.n.uniqueItems",
        ),
    ],
)
def test_a_keyword_that_cannot_be_enforced_is_refused_with_strict_alone(
    served: Served, schema: dict[str, object], path: str
) -> None:
    where = f"tools[1].function.parameters{path}"
    tools = [TOOL, function(name="a", parameters=schema, strict=True)]
    assert served.chat(messages=HELLO, tools=tools).json()["error"]["param"] == where
    tools = [TOOL, function(name="a", parameters=schema)]
    fields = {"messages": HELLO, "tools": tools, "tool_choice": "required", "max_tokens": 1}
    reply = served.chat(**fields)
    assert (reply.status_code, reply.headers["x-quire-ignored"]) == (200, where)
