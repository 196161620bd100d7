"""Parameters of tools become schemas that grammars can be made of, in formats that write them as
JSON and in those that write them one by one."""

import pytest

from quire.server.errors import RequestError
from quire.server.grammars.enforced_tools import EnforcedTool, enforced_tool
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import ToolFormatName
from tests.server.grammars.matching import accepts, matcher

JSON, TAGGED, PYTHON = ToolFormatName.hermes, ToolFormatName.qwen3_coder, ToolFormatName.pythonic
ONE_BY_ONE = (TAGGED, ToolFormatName.glm45, PYTHON)


def made(form: ToolFormatName, schema: dict[str, object], *, strict: bool = False) -> EnforcedTool:
    return enforced_tool(CallableTool("f", schema, "t", "t.p", is_strict=strict), form.value)


def grammar(form: ToolFormatName, schema: dict[str, object], *, strict: bool = False) -> str:
    tool = made(form, schema, strict=strict).tool
    return f"start: body\n{tool_calls(form.value, ToolUse([tool], True, False), {})}"


@pytest.mark.parametrize("form", ONE_BY_ONE)
@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"anyOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]}, "anyOf"),
        ({"properties": {"x": {}}, "minProperties": 1}, "minProperties"),
        ({"properties": {"x": {}}, "patternProperties": {"^y": {}}}, "patternProperties"),
        ({"properties": {"x": {}}, "dependentRequired": {"x": ["y"]}}, "dependentRequired"),
    ],
)
def test_what_is_said_of_the_whole_is_lost_where_properties_are_written_one_by_one(
    form: ToolFormatName, schema: dict[str, object], lost: str
) -> None:
    assert made(form, schema).loosened == (f"t.p.{lost}",)
    matcher(grammar(form, schema))
    with pytest.raises(RequestError) as raised:
        made(form, schema, strict=True)
    assert raised.value.param == f"t.p.{lost}"
    assert not made(JSON, schema, strict=True).loosened


@pytest.mark.parametrize("form", ONE_BY_ONE)
def test_a_tool_may_refer_to_itself(form: ToolFormatName) -> None:
    schema: dict[str, object] = {"properties": {"x": {"type": "array", "items": {"$ref": "#"}}}}
    assert not made(form, schema, strict=True).loosened
    matcher(grammar(form, schema))
    matcher(grammar(form, {"$ref": "#/$defs/a", "$defs": {"a": schema}}))


def test_a_text_in_tags_is_held_to_what_text_can_be() -> None:
    schema: dict[str, object] = {"properties": {"x": {"type": "string", "not": {"const": "a"}}}}
    assert made(TAGGED, schema).loosened == ("t.p.properties.x.not",)
    with pytest.raises(RequestError):
        made(TAGGED, schema, strict=True)
    text = grammar(JSON, schema, strict=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "%s"}}\n</tool_call>'
    assert accepts(text, call % "b") and not accepts(text, call % "a")


def test_properties_that_a_condition_speaks_of_may_be_there() -> None:
    schema: dict[str, object] = {
        "properties": {"x": {"enum": ["a", "b"]}},
        "if": {"properties": {"x": {"const": "a"}}, "required": ["x"]},
        "then": {"required": ["y"]},
    }
    text = grammar(JSON, schema, strict=True)
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert accepts(text, call % '{"x": "a", "y": 1}') and not accepts(text, call % '{"x": "a"}')
    assert accepts(text, call % '{"x": "b"}')
