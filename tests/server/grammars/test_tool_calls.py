"""Outputs of the grammars of tool calls are calls, with arguments of the tools' schemas."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.errors import RequestError
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.grammars.matching import FIRST_SPECIAL, matcher, token_ids
from tests.server.grammars.walks import Walk, accepts
from tests.server.parsers.outputs import Read, read

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
FORMATS = list(ToolFormatName)
HOLDING = "<tool_call>a</parameter>\n b</arg_value>c</tool_call>d</｜tool▁call▁end｜>[/TOOL_CALLS]"
STRINGS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 3},
        {"type": "string", "minLength": 2, "maxLength": 9, "description": "A city"},
        {"type": "string", "enum": ["", "a/b", 'say "it"', "two\nlines"]},
        {"type": "string", "const": "</parameter", "title": "Odd"},
        {"type": "string", "const": HOLDING, "title": "Odder"},
        {"type": "string", "pattern": r"^[a-z]/\d{2}$"},
        {"type": "string", "format": "date"},
    ]
)
LEAVES = STRINGS | st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 300},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"enum": ["metric", 7, True]},
        {"$ref": "#/$defs/Unit"},
        {},
        True,
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda schema: {"type": "array", "items": schema, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=2).map(lambda schemas: {"anyOf": schemas}),
        inner.map(lambda schema: {"type": "object", "properties": {"in": schema}}),
    ),
    max_leaves=3,
)
NAMES = st.sampled_from(["city", "days", "on", "unit_2"])


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, object]:
    properties = draw(st.dictionaries(NAMES, VALUES, max_size=3))
    required = draw(st.lists(st.sampled_from([*properties, "more"]), unique=True, max_size=2))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
    }


TOOLS = st.dictionaries(
    st.sampled_from(["find", "find_all", "now"]), schemas(), min_size=1, max_size=3
)


def callable_tools(tools: dict[str, dict[str, object]], *free: str) -> list[CallableTool]:
    paths = [f"tools[{index}].function" for index in range(len(tools))]
    return [
        CallableTool(name, schema, path, f"{path}.parameters", name in free)
        for path, (name, schema) in zip(paths, tools.items(), strict=True)
    ]


def words_of(form: ToolFormatName) -> list[str]:
    """What outputs of the format are likely to hold, and what they should not."""
    syntax = [getattr(each, "value_close", "") for each in form.value.syntax]
    tags = [tag for tag in (*form.value.tags, *form.value.first_opens, *syntax) if tag]
    return [*tags, *(f"</{tag[1:]}" for tag in tags if tag[1:2].isalpha()), *"'\"{[]},:(1 ", "\\n"]


def parsed(text: str, form: ToolFormatName, tools: dict[str, dict[str, object]]) -> Read:
    """The output as it is read, whole and by character."""
    options = ParserOptions(form.value, tools)
    whole = read([text], options)
    assert read(text, options) == whole
    return whole


def check(output: Read, tools: dict[str, dict[str, object]], *free: str) -> None:
    """Check the calls that are whole."""
    for call in output.calls:
        if call.is_whole and call.name not in free:
            jsonschema.validate(json.loads(call.arguments), tools[call.name])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(
    tools=TOOLS, parallel=st.booleans(), any_whitespace=st.booleans(), seed=st.integers(0, 2**32)
)
@cases(40)
def test_required_outputs_are_calls(
    form: ToolFormatName,
    tools: dict[str, dict[str, object]],
    parallel: bool,
    any_whitespace: bool,
    seed: int,
) -> None:
    use = ToolUse(callable_tools(tools), True, parallel, any_whitespace)
    body = tool_calls(form.value, use, {})
    walk = Walk(body, words_of(form), Random(seed)).go(120)
    output = parsed(walk.text, form, tools)
    if walk.has_ended:
        check(output, tools)
        assert not output.content and all(call.is_whole for call in output.calls)
        assert len(output.calls) == 1 or (parallel and output.calls)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(
    tools=TOOLS, prose=st.sampled_from(["", "Let me see. ", "\n", "<tool ", "[x"]), data=st.data()
)
@cases(40)
def test_text_may_hold_calls_which_are_of_their_schemas(
    form: ToolFormatName, tools: dict[str, dict[str, object]], prose: str, data: st.DataObject
) -> None:
    """One of the tools takes any arguments."""
    free = data.draw(st.sampled_from(sorted(tools)))
    random = Random(data.draw(st.integers(0, 2**32)))
    body = tool_calls(form.value, ToolUse(callable_tools(tools, free), False, True), {})
    walk = Walk(body, words_of(form), random)
    walk.take(prose)
    for opening in (*form.value.opens, *form.value.first_opens):
        walk.take(opening)
    walk.go(120)
    output = parsed(walk.text, form, tools)
    if walk.has_ended:
        check(output, tools, free)
        assert all(call.is_whole for call in output.calls)


def required(
    form: ToolFormatName,
    schema: dict[str, object],
    name: str = "find",
    *,
    any_whitespace: bool = True,
) -> str:
    tool = CallableTool(name, schema, "tools[0].function", "tools[0].function.parameters")
    return tool_calls(form.value, ToolUse([tool], True, True, any_whitespace), {})


CITY: dict[str, object] = {
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["city"],
}
WRITTEN = {
    ToolFormatName.hermes: '<tool_call>\n{"name": "find", "arguments": {"city": "Rome"}}\n'
    "</tool_call>",
    ToolFormatName.llama3_json: '{"name": "find", "parameters": {"city": "Rome"}}',
    ToolFormatName.generic: '[{"name": "find", "arguments": {"city": "Rome"}}]',
    ToolFormatName.mistral: '[TOOL_CALLS][{"name": "find", "arguments": {"city": "Rome"}}]',
    ToolFormatName.pythonic: "[find(city='Rome'), find(city=\"Rome\", n=3)]",
    ToolFormatName.qwen3_coder: "<tool_call>\n<function=find>\n<parameter=city>\nRome\n</parameter>"
    "\n</function>\n</tool_call>",
    ToolFormatName.glm45: "<tool_call>find\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "</tool_call>",
    ToolFormatName.deepseek_v3: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
    '<｜tool▁sep｜>find\n```json\n{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ToolFormatName.deepseek_v31: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
    '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ToolFormatName.kimi_k2: "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
    '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
}


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
def test_calls_are_written_as_templates_show_them(form: ToolFormatName) -> None:
    assert accepts(required(form, CITY, any_whitespace=False), WRITTEN[form])
    body = required(form, CITY)
    assert accepts(body, WRITTEN[form])
    assert not accepts(body, WRITTEN[form].replace("city", "town"))
    assert not accepts(body, WRITTEN[form].replace("find", "seek"))
    assert not accepts(body, f"I say {WRITTEN[form]}")


VALUE: dict[str, object] = {"at": {"lat": 1.5, "of": ["a b", {}]}, "n": 3}
AT: dict[str, object] = {
    "properties": {"at": {"type": "object"}, "n": {"type": "integer"}},
    "required": ["at", "n"],
}


def call_of(form: ToolFormatName, indent: int | str | None) -> str:
    """A call with VALUE for its arguments, their JSON laid out as printers do it."""
    whole, city = (json.dumps(each, indent=indent) for each in (VALUE, VALUE["at"]))
    written = WRITTEN[form].replace("[find(city='Rome'), ", "[")
    for old, new in (
        ('{"city": "Rome"}', whole),
        ('city="Rome", n=3', f"at={city}, n=3"),
        (
            "=city>\nRome\n</parameter>",
            f"=at>\n{city}\n</parameter>\n<parameter=n>\n3\n</parameter>",
        ),
        (
            "city</arg_key>\n<arg_value>Rome</arg_value>",
            f"at</arg_key>\n<arg_value>{city}</arg_value>\n"
            "<arg_key>n</arg_key>\n<arg_value>3</arg_value>",
        ),
    ):
        written = written.replace(old, new)
    return written


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_arguments_are_read_however_they_are_laid_out(
    form: ToolFormatName, indent: int | str | None
) -> None:
    """What is streamed, character by character, is JSON of the same value."""
    text = call_of(form, indent)
    assert accepts(required(form, AT), text)
    assert accepts(required(form, AT, any_whitespace=False), text) == (indent is None)
    (call,) = parsed(text, form, {"find": AT}).calls
    assert call.is_whole and json.loads(call.arguments) == VALUE


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
@pytest.mark.parametrize("is_required", [True, False])
def test_tags_may_be_special_tokens(form: ToolFormatName, is_required: bool) -> None:
    """Text that spells a tag leads into a call too, as the parser does not tell them apart."""
    text = WRITTEN[form]
    found = (tag for tag in form.value.tags if tag in text and tag[0] in "<[")
    tags = sorted(found, key=text.find)
    ids = {tag: FIRST_SPECIAL + index for index, tag in enumerate(tags)}
    tool = CallableTool("find", CITY, "tools[0].function", "tools[0].function.parameters")
    body = tool_calls(form.value, ToolUse([tool], is_required, True), ids)

    def takes(text: str, *specials: str) -> bool:
        made, given = matcher(f"start: body\n{body}", tuple(tags)), token_ids(text, specials)
        return made.try_consume_tokens(given) == len(given) and made.is_accepting()

    assert takes(text, *tags)
    assert not takes(text.replace("city", "town"), *tags)
    if not is_required and form.value.opens and form.value.opens[0] in text:
        assert takes(f"Well. {text}", *tags)
        assert not takes(f"{form.value.opens[0]}Well.")


@pytest.mark.parametrize(
    ("form", "name", "schema", "path"),
    [
        (ToolFormatName.kimi_k2, "a:b", {}, "name"),
        (ToolFormatName.qwen3_coder, "a>b", {}, "name"),
        (ToolFormatName.pythonic, "a b", {}, "name"),
        (ToolFormatName.pythonic, "f", {"properties": {"a b": {}}}, "parameters.properties.a b"),
        (ToolFormatName.glm45, "f", {"anyOf": [{}]}, "parameters.anyOf"),
        (ToolFormatName.glm45, "f", {"required": "x"}, "parameters.required"),
        (
            ToolFormatName.glm45,
            "f",
            {"required": ["x"], "additionalProperties": False},
            "parameters.required",
        ),
        (
            ToolFormatName.qwen3_coder,
            "f",
            {"properties": {"x": {"type": "string", "contains": {}}}},
            "parameters.properties.x.contains",
        ),
        (
            ToolFormatName.qwen3_coder,
            "f",
            {"properties": {"x": {"type": "string", "pattern": "a\\"}}},
            "parameters.properties.x.pattern",
        ),
    ],
)
def test_what_a_format_cannot_say_is_refused(
    form: ToolFormatName, name: str, schema: dict[str, object], path: str
) -> None:
    with pytest.raises(RequestError) as refused:
        required(form, schema, name)
    assert refused.value.param == f"tools[0].function.{path}"


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "held", [HOLDING, "<tool_call>", "</tool_call>", "</parameter>", "</arg_value>", "<think>"]
)
def test_a_constant_that_holds_tags_is_said_to_the_letter(form: ToolFormatName, held: str) -> None:
    tools: dict[str, dict[str, object]] = {
        "now": {"properties": {"text": {"type": "string", "const": held}}, "required": ["text"]}
    }
    use = ToolUse(callable_tools(tools), True, False)
    body = tool_calls(form.value, use, {})
    walk = Walk(body, words_of(form), Random(0)).go(400)
    assert accepts(body, walk.text)
    output = parsed(walk.text, form, tools)
    assert (output.named, output.content) == ([("now", {"text": held})], "")
