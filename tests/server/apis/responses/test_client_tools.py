"""Tools of a request: custom ones, namespaces, and hosted ones, which are left out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.responses.items.tools import HOSTED_TOOLS
from quire.server.errors import RequestError
from tests.profiles import cases
from tests.server.apis.responses.items import ASKED, read

FUNCTION = {"type": "function", "name": "find", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edits files."}
SPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FUNCTION]}
NAMES = st.sampled_from(["a", "b", "a__b", "b__a", "a__"])


def grammar(syntax: str, definition: str) -> dict[str, object]:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def names(tools: list[dict[str, Any]], **fields: object) -> list[str]:
    return [tool.name for tool in read({"tools": tools, **fields}).tools]


@pytest.mark.parametrize("kind", sorted(HOSTED_TOOLS))
def test_a_hosted_tool_is_left_out_and_named(kind: str) -> None:
    hosted = {"type": kind, "server_label": "x", "description": "A tool.", "name": "x"}
    for refuses in (False, True):
        chat = read({"tools": [FUNCTION, hosted], "tool_choice": "auto"}, refuses=refuses)
        assert (chat.ignored, [tool.name for tool in chat.tools]) == (("tools[1]",), ["find"])
    choices: list[object] = [
        {"type": kind},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]},
    ]
    for choice, param in zip(choices, ("tool_choice", "tool_choice.tools[0]"), strict=True):
        with pytest.raises(RequestError) as caught:
            read({"tools": [FUNCTION, hosted], "tool_choice": choice})
        assert caught.value.param == f"{param}.type"


def test_without_tools_of_the_clients_own_the_model_is_left_to_answer() -> None:
    for tools in ([], [{"type": "web_search"}]):
        assert read({"tools": tools, "tool_choice": "auto"}).choice.mode is None


def test_a_tool_that_nobody_knows_is_left_out_or_refused() -> None:
    tools = [FUNCTION, {"type": "ghost"}]
    assert read({"tools": tools}).ignored == ("tools[1]",)
    with pytest.raises(RequestError) as caught:
        read({"tools": tools}, refuses=True)
    assert caught.value.param == "tools[1].type"


@given(st.lists(st.tuples(NAMES | st.none(), NAMES), min_size=1, max_size=6, unique=True))
@cases(100)
def test_names_of_the_model_are_unique_and_lead_back(tools: list[tuple[str | None, str]]) -> None:
    given = [
        {**FUNCTION, "name": name}
        if space is None
        else {**SPACE, "name": space, "tools": [{**FUNCTION, "name": name}]}
        for space, name in tools
    ]
    calls = [
        {"type": "function_call", "call_id": f"c{i}", "name": name, "namespace": space}
        | {"arguments": "{}"}
        for i, (space, name) in enumerate(tools)
    ]
    chat = read({"tools": given, "input": [ASKED, *calls]})
    offered = [tool.name for tool in chat.tools]
    assert len({*offered}) == len(tools)
    assert [call.name for call in chat.messages[1].tool_calls] == offered
    assert all(name == offered[i] for i, (space, name) in enumerate(tools[:1]) if space is None)


def test_a_namespace_is_described_once() -> None:
    second = {**FUNCTION, "name": "list", "description": "Lists."}
    chat = read({"tools": [{**SPACE, "tools": [FUNCTION, second, {**CUSTOM}]}]})
    assert [tool.name for tool in chat.tools] == ["crm__find", "crm__list", "crm__patch"]
    assert [tool.description for tool in chat.tools] == [
        "Customers.",
        "Lists.",
        "Edits files.",
    ]


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    (tool,) = read({"tools": [{**CUSTOM, "format": {"type": "text"}}]}).tools
    assert (tool.name, tool.description, tool.strict) == ("patch", "Edits files.", False)
    assert tool.parameters is not None
    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    given = {**CUSTOM, "format": grammar("lark", "start: /[a-z]+/")}
    (tool,) = read({"tools": [given]}).tools
    assert (tool.description or "").startswith("Edits files.")
    assert (tool.description or "").endswith("start: /[a-z]+/")
    assert tool.strict


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (3, ""),
        ({}, ".type"),
        ({"type": 3}, ".type"),
        ({**CUSTOM, "name": ""}, ".name"),
        ({**CUSTOM, "description": 3}, ".description"),
        ({**CUSTOM, "format": "text"}, ".format"),
        ({**CUSTOM, "format": {"type": "xml"}}, ".format.type"),
        ({**CUSTOM, "format": grammar("ebnf", "x")}, ".format.syntax"),
        ({**CUSTOM, "format": grammar("regex", "(")}, ".format.definition"),
        ({**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}}, ".format.definition"),
        ({**CUSTOM, "format": grammar("lark", " ")}, ".format.definition"),
        ({**SPACE, "tools": {}}, ".tools"),
        ({**SPACE, "name": 3}, ".name"),
        ({**SPACE, "tools": [{**FUNCTION, "name": 3}]}, ".tools[0].name"),
    ],
    ids=str,
)
def test_a_fault_of_a_tool_is_named_by_its_path(tool: object, param: str) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    with pytest.raises(RequestError) as caught:
        read({"input": [ASKED, item]})
    assert caught.value.param == f"input[1].tools[0]{param}"


def test_fields_of_tools_that_say_nothing_are_taken_and_others_named() -> None:
    known = {"defer_loading": True, "output_schema": {}, "allowed_callers": ["direct"]}
    tools = [{**FUNCTION, **known, "hue": 1}, {**CUSTOM, "defer_loading": True, "async": False}]
    assert read({"tools": tools}).ignored == ("tools[0].hue",)


def test_items_bring_tools_in_place_of_others() -> None:
    more = {"type": "additional_tools", "role": "developer"}
    brought = {**FUNCTION, "name": "list"}
    items = [ASKED, {**more, "tools": [brought, {"type": "web_search"}]}]
    assert names([FUNCTION], input=items) == ["find", "list"]
    assert names([FUNCTION, brought], input=items) == ["find", "list"]
    assert read({"input": items}).ignored == ("input[1].tools[1]",)


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"type": "custom", "name": "patch"}, ["patch"]),
        ({"type": "function", "name": "find", "namespace": "crm"}, ["crm__find"]),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [
                    {"type": "custom", "name": "patch"},
                    {"type": "function", "name": "find"},
                ],
            },
            ["patch", "find"],
        ),
    ],
    ids=json.dumps,
)
def test_a_choice_names_tools_of_any_kind(choice: dict[str, Any], chosen: list[str]) -> None:
    chat = read({"tools": [FUNCTION, CUSTOM, SPACE], "tool_choice": choice})
    assert [each.name for each in chat.choice.among or ()] == chosen
    assert len(chat.callable_tools) == len(chosen)


@pytest.mark.parametrize("syntax", ["regex", "lark"])
def test_a_grammar_has_a_bound(syntax: str) -> None:
    tool = {**CUSTOM, "format": grammar(syntax, 'start: "a"\n' * 7_000)}
    with pytest.raises(RequestError, match="at most 65536 are allowed") as refused:
        read({"tools": [tool]})
    assert refused.value.param == "tools[0].format.definition"
