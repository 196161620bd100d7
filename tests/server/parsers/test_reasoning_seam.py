"""The seam between reasoning and calls: no call is lost there, in any format, and none is made of
what the model only thinks of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.parsers.formats import ReasoningFormat, ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import TOOLS, options, read
from tests.server.parsers.test_output_parser import Calls, fragments, write_calls

FORMATS = list(ToolFormatName)
WITH_TAGS = [form for form in FORMATS if form.value.opens]
"""Formats whose calls a tag opens, wherever they come."""
REASONING = list(dict.fromkeys(form.value for form in ReasoningFormatName))
CALLS: Calls = [("search", {"query": "a <b>"}), ("now", {})]
SPACES = ("", " ", "\n", "\n\n", " \r\n\t")


def of_form(form: ToolFormatName) -> str:
    return form.name


@pytest.mark.parametrize("reasoning", REASONING, ids=lambda form: form.opens)
@pytest.mark.parametrize("form", FORMATS, ids=of_form)
def test_calls_after_reasoning_are_read_at_every_split(
    form: ToolFormatName, reasoning: ReasoningFormat
) -> None:
    """The seam is cut at each of its characters, and at all of them, with each white space."""
    calls = write_calls(CALLS, form)
    given = ParserOptions(form.value, TOOLS, reasoning=reasoning)
    for space in SPACES:
        seam = f"{reasoning.closes}{reasoning.next_opens}{space}"
        text = f"{reasoning.opens}Hm.{seam}{calls}"
        begins, ends = len(reasoning.opens), len(text) - len(calls) + 24
        splits = [[text[:cut], text[cut:]] for cut in range(begins, min(ends, len(text)))]
        for parts in (*splits, [*text], [text]):
            output = read(parts, given)
            assert (output.named, output.content, output.reasoning) == (CALLS, "", "Hm.")
            assert all(call.is_whole for call in output.calls)


@pytest.mark.parametrize("form", WITH_TAGS, ids=of_form)
@cases(60)
@given(st.data())
def test_calls_that_end_an_open_reasoning_are_calls(
    form: ToolFormatName, data: st.DataObject
) -> None:
    """Models forget the closing tag: the output ends with calls that would otherwise be lost."""
    opening = form.value.opens[0] if form.value.bare else ""
    calls = CALLS[1:] if form is ToolFormatName.llama3_json else CALLS
    text = f"<think>\nI look. {opening}{write_calls(calls, form)}\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    edges = [0, *cuts, len(text)]
    parts = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    output = read(parts, options(form))
    assert (output.named, output.content, output.reasoning) == (calls, "", "I look.")
    assert all(call.is_whole for call in output.calls)


@pytest.mark.parametrize("more", ["</think>", "\n</think>\nNo.", " No, wait.", "<think>"])
@pytest.mark.parametrize("form", WITH_TAGS, ids=of_form)
def test_calls_that_are_only_thought_of_are_reasoning(form: ToolFormatName, more: str) -> None:
    opening = form.value.opens[0] if form.value.bare else ""
    thought = f"{opening}{write_calls(CALLS[1:], form)}"
    text = f"<think>{thought}{more}"
    for parts in ([text], [*text]):
        output = read(parts, options(form))
        assert output.calls == []
        assert output.reasoning.startswith(thought.rstrip())


@pytest.mark.parametrize("form", FORMATS, ids=of_form)
@cases(60)
@given(st.data())
def test_an_open_reasoning_reads_the_same_however_it_is_split(
    form: ToolFormatName, data: st.DataObject
) -> None:
    parts = data.draw(
        st.lists(st.sampled_from([*fragments(form.value), write_calls(CALLS, form)]), max_size=10)
    )
    text = "".join(parts)
    given = options(form, in_reasoning=True)
    whole = read([text], given)
    assert read(text, given) == whole
    assert read(parts, given) == whole
    if not whole.calls and "</think>" not in text:
        assert (whole.content, whole.reasoning) == ("", text.lstrip(" \t\r\n"))


def test_a_call_that_was_cut_within_an_open_reasoning_is_reasoning() -> None:
    text = 'Hm. <tool_call>{"name": "search", "arguments": {"query": "a'
    output = read([text], options(ToolFormatName.hermes, in_reasoning=True))
    assert (output.calls, output.reasoning) == ([], text)


def test_a_call_after_one_that_was_only_named_is_no_less_a_call() -> None:
    text = 'I use <tool_call> now. <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    output = read([text], options(ToolFormatName.hermes, in_reasoning=True))
    assert (output.named, output.reasoning) == ([("now", {})], "I use <tool_call> now.")


def test_calls_in_reasoning_are_numbered_after_those_before() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    output = read([f"{call}<think>Again. {call}{call}"], options(ToolFormatName.hermes))
    assert (output.named, output.reasoning) == ([("now", {})] * 3, "Again.")
    given = replace(options(ToolFormatName.hermes), one_call=True)
    assert read([f"<think>Once. {call}{call}"], given).named == [("now", {})]


def test_a_long_reasoning_costs_no_more_than_its_length() -> None:
    call = '<tool_call>{"name": "search", "arguments": {"query": "'
    for text in ("<tool_call>" * 5_000, call * 2_000, f'{call}{call * 2_000}"}}}} no'):
        output = read([text], options(ToolFormatName.hermes, in_reasoning=True))
        assert (output.reasoning, output.calls) == (text, [])
