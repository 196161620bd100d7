"""Events joined are the same for every split of a text; nothing is lost, and no markup is left."""

import json
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.server.parsers.formats import (
    TaggedCall,
    ToolFormat,
    ToolFormatName,
    find_reasoning_format,
    find_tool_format,
)
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import THINK, TOOLS, Call, options, read

Calls = list[tuple[str, dict[str, object]]]
FORMATS = list(ToolFormatName)
TAGGED = (
    ToolFormatName.qwen3_coder,
    ToolFormatName.glm45,
    ToolFormatName.seed_oss,
    ToolFormatName.minimax_m2,
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["</tool_call>", "<think>", "\n", '"', "\\", "}", "]", "é😀", "<tool_call>{", "\u2028", "a, b)"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
CALLS: st.SearchStrategy[Calls] = st.lists(
    st.one_of(
        st.tuples(
            st.just("get_weather"),
            st.fixed_dictionaries({"city": WORDS}, optional={"days": st.integers()}),
        ),
        st.tuples(
            st.just("search"),
            st.fixed_dictionaries(
                {"query": WORDS}, optional={"filter": st.dictionaries(WORDS, JSON, max_size=3)}
            ),
        ),
        st.tuples(st.just("now"), st.just({})),
    ),
    min_size=1,
    max_size=3,
)
PROSE = st.sampled_from(
    ["", "Let me look.", "a < b", "{not json", "naïve\n\ncafé", "[1, 2]", "x <tool_cal y"]
)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def tagged(calls: Calls, form: str) -> str:
    key, value, close = {
        "qwen3_coder": ("<parameter={}>\n", "{}\n</parameter>\n", "</function>\n"),
        "seed_oss": ("<parameter={}>", "{}</parameter>\n", "</function>\n"),
        "minimax_m2": ('<parameter name="{}">', "{}</parameter>\n", "</invoke>\n"),
        "glm45": ("<arg_key>{}</arg_key>\n", "<arg_value>{}</arg_value>\n", ""),
    }[form]
    opens, head, closes = {
        "qwen3_coder": ("<tool_call>", "\n<function={}>\n", "</tool_call>"),
        "seed_oss": ("<seed:tool_call>", "\n<function={}>\n", "</seed:tool_call>"),
        "minimax_m2": ("<minimax:tool_call>", '\n<invoke name="{}">\n', "</minimax:tool_call>"),
        "glm45": ("<tool_call>", "{}\n", "</tool_call>"),
    }[form]
    written = []
    for name, arguments in calls:
        fields = [
            key.format(each) + value.format(given if isinstance(given, str) else compact(given))
            for each, given in arguments.items()
        ]
        written.append(f"{opens}{head.format(name)}{''.join(fields)}{close}{closes}")
    return "\n".join(written)


def write_calls(calls: Calls, form: ToolFormatName) -> str:
    """The calls as a model of this format writes them."""
    objects = [compact({"name": name, "arguments": given}) for name, given in calls]
    if form is ToolFormatName.hermes:
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    listed = {
        ToolFormatName.generic: "[{}]",
        ToolFormatName.mistral: "[TOOL_CALLS] [{}]",
        ToolFormatName.granite: "<|tool_call|>[{}]",
        ToolFormatName.jamba: "<tool_calls>[{}]</tool_calls>",
    }
    if form in listed:
        return listed[form].format(", ".join(objects))
    if form is ToolFormatName.internlm:
        shown = (f"<|action_start|><|plugin|>\n{each}<|action_end|>" for each in objects)
        return "\n".join(each.replace('"arguments"', '"parameters"', 1) for each in shown)
    if form is ToolFormatName.gpt_oss:
        head = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
        return "".join(head.format(name, compact(given)) for name, given in calls)
    if form is ToolFormatName.llama3_json:
        return "; ".join(each.replace('"arguments"', '"parameters"', 1) for each in objects)
    if form is ToolFormatName.pythonic:
        shown = (
            f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
            for name, given in calls
        )
        return f"[{', '.join(shown)}]"
    if form in TAGGED:
        return tagged(calls, form.name)
    before, between, after = {
        "deepseek_v3": ("function<｜tool▁sep｜>", "\n```json\n", "\n```"),
        "deepseek_v31": ("", "<｜tool▁sep｜>", ""),
        "kimi_k2": ("functions.", ":0<|tool_call_argument_begin|>", ""),
    }[form.name]
    (section,), opens, closes = form.value.opens, form.value.call_open, form.value.tails[-1]
    shown = (
        f"{opens}{before}{name}{between}{compact(given)}{after}{closes}" for name, given in calls
    )
    return f"{section}{''.join(shown)}{form.value.closes}"


def in_parts(text: str, cuts: Sequence[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def can_be_written(calls: Calls, form: ToolFormatName) -> bool:
    """Return whether the format can say these arguments: a text that stands between tags cannot
    hold the closing one with what may follow it, nor begin or end with what is taken for
    padding."""
    syntax = form.value.syntax[0]
    if not isinstance(syntax, TaggedCall):
        return True
    after = [tag for tag in (syntax.key_open, syntax.close, form.value.closes) if tag]
    ends = f"{re.escape(syntax.value_close)}[ \t\r\n]*({'|'.join(map(re.escape, after))})"
    texts = [text for _, given in calls for text in given.values() if isinstance(text, str)]
    return not any(re.search(ends, text) or text.strip("\n") != text for text in texts)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@cases(100)
@given(st.data())
def test_calls_are_read_back_however_the_text_is_split(
    form: ToolFormatName, data: st.DataObject
) -> None:
    calls = data.draw(CALLS)
    assume(can_be_written(calls, form))
    thought, said = data.draw(PROSE), data.draw(PROSE)
    is_bare = not form.value.opens or bool(form.value.bare)
    said = "" if is_bare else said
    text = f"<think>\n{thought}\n</think>\n\n{said}\n{write_calls(calls, form)}"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    output = read(in_parts(text, cuts), options(form))
    assert output.named == calls
    assert all(call.is_whole for call in output.calls)
    assert (output.content, output.reasoning) == (said, thought)


def fragments(form: ToolFormat) -> list[str]:
    """Return the parts that hostile texts in a format are put together of."""
    tags = [*form.tags, "<think>", "</think>"]
    halves = [tag[: len(tag) // 2] for tag in tags]
    return [
        *tags,
        *halves,
        '{"name": "now", "arguments": {',
        '"name": "get_weather"',
        '"parameters": {"city": "a\\u00e9\\ud83d',
        "now()",
        "get_weather(city=['",
        "get_weather\n",
        "<function=get_weather>",
        "<parameter=city>",
        "<parameter=days>",
        "</parameter>",
        "</function>",
        "<arg_key>days</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<｜tool▁sep｜>now",
        "now[ARGS]",
        "{}",
        *'{}[]"(),:\\\n ;1é',
    ]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@cases(100)
@given(st.data())
def test_a_hostile_text_reads_the_same_however_it_is_split(
    form: ToolFormatName, data: st.DataObject
) -> None:
    parts = data.draw(st.lists(st.sampled_from(fragments(form.value)), max_size=16))
    text, in_reasoning = "".join(parts), data.draw(st.booleans())
    given = options(form, in_reasoning=in_reasoning)
    whole = read([text], given)
    assert read(text, given) == whole
    assert read(parts, given) == whole
    for call in whole.calls:
        if call.is_whole:
            assert isinstance(json.loads(call.arguments), dict)
    kept = whole.content + whole.reasoning
    if not whole.calls and "think>" not in text and not in_reasoning:
        assert kept == text


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@cases(100)
@given(st.data())
def test_arguments_that_hold_tags_are_exact(form: ToolFormatName, data: st.DataObject) -> None:
    """Those of the format itself too, whole, halved and in any order: a file's text may."""
    held = "".join(data.draw(st.lists(st.sampled_from(fragments(form.value)), max_size=8)))
    calls: Calls = [("search", {"query": held, "filter": {held: [held]}}), ("now", {"a": held})]
    assume(can_be_written(calls, form))
    text = write_calls(calls, form)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    output = read(in_parts(text, cuts), options(form))
    assert (output.named, output.content) == (calls, "")
    assert all(call.is_whole for call in output.calls)


def without_half_tag(call: Call, form: ToolFormatName) -> Iterator[str]:
    """The arguments of a call that was cut, without what may have become a closing tag."""
    yield call.arguments
    if form in TAGGED:
        close = form.value.syntax[0].value_close  # type: ignore[union-attr]
        for tag in (close, f"\\n{close}"):
            for length in range(1, len(tag)):
                yield call.arguments.removesuffix(tag[:length])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@cases(60)
@given(CALLS, st.data())
def test_a_call_that_was_cut_ends_in_a_prefix_of_its_arguments(
    form: ToolFormatName, calls: Calls, data: st.DataObject
) -> None:
    if not can_be_written(calls, form):
        return
    text = write_calls(calls, form)
    whole = read([text], options(form))
    cut = read([text[: data.draw(st.integers(0, len(text)))]], options(form))
    for cut_call, call in zip(cut.calls, whole.calls, strict=False):
        assert cut_call.name == call.name
        assert any(call.arguments.startswith(each) for each in without_half_tag(cut_call, form))
        assert cut_call.arguments == call.arguments or not cut_call.is_whole


@pytest.mark.parametrize("form", TAGGED, ids=lambda form: form.name)
def test_a_call_is_not_whole_before_its_last_parameter(form: ToolFormatName) -> None:
    """Wherever the output is cut: a tool that was called without what it was to be given would do
    something else."""
    text = write_calls([("search", {"query": ""})], form)
    (whole,) = read([text], options(form)).calls
    for length in range(len(text)):
        for call in read([text[:length]], options(form)).calls:
            assert not call.is_whole or call.arguments == whole.arguments


@cases(300)
@given(st.text("ab<think>/ \n", max_size=40))
def test_without_formats_a_text_is_content(text: str) -> None:
    output = read(text, ParserOptions())
    assert (output.content, output.reasoning, output.calls) == (text, "", [])


@cases(300)
@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "<", "think>", " ", "\n"])))
def test_reasoning_is_what_stands_between_its_tags(parts: list[str]) -> None:
    text = "".join(parts)
    content, reasoning, rest = "", "", text
    while rest:
        said, _, rest = rest.partition("<think>")
        thought, _, rest = rest.partition("</think>")
        content, reasoning = content + said, reasoning + thought
    output = read(text, ParserOptions(reasoning=THINK))
    assert "".join(output.content.split()) == "".join(content.split())
    assert "".join(output.reasoning.split()) == "".join(reasoning.split())


def test_arguments_are_sent_while_they_come() -> None:
    text = '<tool_call>{"name": "search", "arguments": {"query": "a long'
    (call,) = read([text], options(ToolFormatName.hermes)).calls
    assert (call.arguments, call.is_whole) == ('{"query": "a long', False)
    text = "<tool_call>\n<function=search>\n<parameter=query>\na long"
    (call,) = read([text], options(ToolFormatName.qwen3_coder)).calls
    assert (call.arguments, call.is_whole) == ('{"query": "a long', False)


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', {"a": 1}),
        ("hermes", '<tool_call>{"type": "function", "name": "now"}</tool_call>', {}),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "1\n2"}}', {"a": "1\n2"}),
        ("mistral", '[TOOL_CALLS]now[CALL_ID]abc[ARGS]{"a": 1}', {"a": 1}),
        ("mistral", '[TOOL_CALLS]now{"a": 1}', {"a": 1}),
        ("llama3_json", '<|python_tag|>{"name": "now", "parameters": {"a": 1}}', {"a": 1}),
        ("pythonic", "[now(a=true, b='x, (y)', c={'d': None})]", {"a": True, "b": "x, (y)"}),
        ("pythonic", "[now(a='''it's (odd)\n''', b='')]", {"a": "it's (odd)\n", "b": ""}),
        ("qwen3_coder", "<tool_call><function=now><parameter=a>1</parameter></function>", None),
        (
            "qwen3_coder",
            "<tool_call><function=now><parameter=a>\n</parameter>\nis a tag\n</parameter>\n"
            "</function></tool_call>",
            {"a": "</parameter>\nis a tag"},
        ),
    ],
)
def test_ways_to_write_a_call(form: str, text: str, arguments: dict[str, object] | None) -> None:
    output = read(text, options(ToolFormatName[form]))
    ((name, given),) = output.named
    assert (name, output.content) == ("now", "")
    assert isinstance(given, dict)
    assert {key: given[key] for key in arguments or {}} == (arguments or {})


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None),
        ("hermes", "<tool_call>", None),
        ("hermes", "see <tool_call> now", None),
        ("llama3_json", '{"name": "rm", "parameters": {}}', None),
        ("llama3_json", 'Say {"name": "now", "parameters": {}}', None),
        ("pythonic", "[link](https://now())", None),
        ("hermes", '<tool_call>{"name": "now", "arguments": []}</tool_call>', None),
    ],
)
def test_what_is_no_call_is_content(form: str, text: str, content: str | None) -> None:
    output = read(text, options(ToolFormatName[form]))
    assert (output.content, output.calls) == (content or text, [])


def test_a_closing_tag_after_a_broken_call_is_no_content() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}} and so on</tool_call>\nEnd'
    output = read(text, options(ToolFormatName.hermes))
    assert (output.content, output.named) == ("} and so onEnd", [("now", {})])


def test_one_call_ends_the_output() -> None:
    text = write_calls([("now", {}), ("now", {})], ToolFormatName.hermes) + "more"
    given = ParserOptions(ToolFormatName.hermes.value, TOOLS, one_call=True)
    output = read([text], given)
    assert (len(output.calls), output.content) == (1, "")


def test_values_become_json_as_the_schema_says() -> None:
    text = (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>7</arg_value>\n</tool_call>"
    )
    output = read(text, options(ToolFormatName.glm45))
    assert output.named == [("get_weather", {"city": "7", "days": 7})]


def test_a_long_output_costs_no_more_than_its_length() -> None:
    for text in ("<tool_call>" * 5_000, " " * 10_000, "<tool_call>{" + '"a": 1, ' * 3_000):
        output = read(text, options(ToolFormatName.hermes))
        assert output.content == text


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("<tool_call>\n{{ call | tojson }}\n</tool_call>", ToolFormatName.hermes),
        ("<tool_call>\n<function={{ name }}>", ToolFormatName.qwen3_coder),
        ("[TOOL_CALLS]{{ name }}[ARGS]", ToolFormatName.mistral),
        ("{{ '<｜tool▁calls▁begin｜>' + name + '<｜tool▁sep｜>' }}", ToolFormatName.deepseek_v31),
        ("<｜tool▁calls▁begin｜><｜tool▁sep｜>{{ name }}\n```json", ToolFormatName.deepseek_v3),
        ('{"name": x, "parameters": dictionary of argument name', ToolFormatName.llama3_json),
        ("<|start|>assistant to=functions.x<|channel|>commentary ", ToolFormatName.gpt_oss),
        ("<seed:tool_call>\n<function={{ name }}>", ToolFormatName.seed_oss),
        ('<minimax:tool_call>\n<invoke name="', ToolFormatName.minimax_m2),
        ("<|tool_call|>{{ call }}", ToolFormatName.granite),
        ("<tool_calls>[{{ calls }}]</tool_calls>", ToolFormatName.jamba),
        ("<|action_start|><|plugin|>", ToolFormatName.internlm),
        ("{{ content }}", None),
    ],
)
def test_a_template_tells_the_format(template: str, form: ToolFormatName | None) -> None:
    assert find_tool_format(template) is (None if form is None else form.value)
    assert find_reasoning_format(template + "</think>") is THINK
    assert find_reasoning_format(template) is None
