"""The channels of gpt-oss: analysis is reasoning, commentary to functions is calls, the rest is
content, however the text is split."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.server.parsers.formats import (
    ReasoningFormatName,
    ToolFormatName,
    find_reasoning_format,
    find_tool_format,
)
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import TOOLS, Call, Read, read
from tests.server.parsers.test_output_parser import PROSE, in_parts

FORMAT = ToolFormatName.gpt_oss.value
OPTIONS = ParserOptions(FORMAT, TOOLS, reasoning=ReasoningFormatName.gpt_oss.value)
START = "<|start|>assistant"
HEADS = (
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.{}<|channel|>commentary json<|message|>",
    "<|channel|>analysis to=functions.{}<|message|>",
    " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>",
)
PLAIN_HEADS = {
    "analysis": ("<|channel|>analysis<|message|>",),
    "content": (
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
    ),
}
FRAGMENTS = (
    *FORMAT.tags,
    *ReasoningFormatName.gpt_oss.value.tags,
    *(tag[: len(tag) // 2] for tag in FORMAT.tags),
    *(head.format("now") for head in HEADS),
    "now",
    "rm",
    " json",
    '{"a": ',
    "{}",
    *' {}"\\a\n',
)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[str, Read]:
    """An output of messages, without the header's beginning, which the prompt has; and what it
    says."""
    text, wanted = "", Read()
    for kind in draw(st.lists(st.sampled_from(["analysis", "content", "call"]), min_size=1)):
        start = START if text else ""
        if kind == "call":
            name = draw(st.sampled_from([*TOOLS]))
            arguments = json.dumps(draw(st.dictionaries(st.text("ab<|", max_size=4), PROSE)))
            head = draw(st.sampled_from(HEADS)).format(name)
            text += start + head + arguments + draw(st.sampled_from(["<|call|>", "<|end|>"]))
            wanted.calls.append(Call(name, arguments, is_whole=True))
            continue
        said = draw(PROSE).strip()
        text += start + draw(st.sampled_from(PLAIN_HEADS[kind])) + said + "<|end|>"
        wanted.reasoning += said if kind == "analysis" else ""
        wanted.content += said if kind == "content" else ""
    return text, wanted


@cases(100)
@given(outputs(), st.data())
def test_each_message_goes_where_its_channel_says(
    output: tuple[str, Read], data: st.DataObject
) -> None:
    text, wanted = output
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    assert read(in_parts(text, cuts), OPTIONS) == wanted


@cases(100)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=16))
@example(["<|call|>", HEADS[3].format("now"), '{"a": '])
def test_a_hostile_text_reads_the_same_however_it_is_split(parts: list[str]) -> None:
    text = "".join(parts)
    whole = read([text], OPTIONS)
    assert read(text, OPTIONS) == whole
    assert read(parts, OPTIONS) == whole
    for call in whole.calls:
        assert call.name in TOOLS
        assert not call.is_whole or isinstance(json.loads(call.arguments), dict)


def test_a_call_of_no_tool_is_content() -> None:
    text = "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>"
    output = read([text], OPTIONS)
    assert (output.content, output.calls) == (text, [])


@pytest.mark.parametrize("end", ["", "<|return|>"])
def test_a_cut_analysis_is_reasoning(end: str) -> None:
    output = read(["<|channel|>analysis<|message|>Is it"], OPTIONS)
    assert (output.content, output.reasoning) == ("", "Is it")
    output = read([f"<|channel|>final<|message|>It is{end}"], OPTIONS)
    assert (output.content, output.reasoning) == ("It is", "")


def test_the_template_shows_the_channels() -> None:
    source = 'x + "<|start|>assistant<|channel|>analysis<|message|>" + y + "<|channel|>commentary "'
    assert find_tool_format(source) is FORMAT
    assert find_reasoning_format(source) is ReasoningFormatName.gpt_oss.value
    assert find_reasoning_format("<|user|>{{ x }}<|end|>") is None
