"""The beginning of a call that a limit or a stop string cuts off before its name is no content."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import TOOLS, options, read
from tests.server.parsers.test_output_parser import (
    CALLS,
    Calls,
    can_be_written,
    in_parts,
    write_calls,
)

FORMATS = pytest.mark.parametrize("form", list(ToolFormatName), ids=lambda form: form.name)
TWO: Calls = [("get_weather", {"city": "Rome", "days": 2}), ("search", {"query": "a"})]
REQUIRED = ParserOptions(tools=TOOLS, is_enforced=True, has_calls_alone=True)


@FORMATS
@cases(60)
@given(CALLS, st.data())
def test_required_calls_have_no_content_wherever_they_are_cut(
    form: ToolFormatName, calls: Calls, data: st.DataObject
) -> None:
    assume(can_be_written(calls, form))
    text = write_calls(calls, form)
    text = text[: data.draw(st.integers(0, len(text)))]
    parts = in_parts(text, data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    given = replace(REQUIRED, tool_format=form.value)
    output = read(parts, given, is_cut=True)
    assert output == read([text], given, is_cut=True)
    assert output.content == ""
    for call, (name, _) in zip(output.calls, calls, strict=False):
        assert call.name == name


@FORMATS
def test_what_is_cut_after_a_call_is_no_content(form: ToolFormatName) -> None:
    """A cut in a separator, a tag or a head, or behind a name, leaves no text of the call."""
    text = write_calls(TWO, form)
    for length in range(len(text)):
        output = read(text[:length], options(form), is_cut=True)
        assert output == read([text[:length]], options(form), is_cut=True)
        assert not (output.calls and output.content)


@pytest.mark.parametrize(
    "form", [each for each in ToolFormatName if each.value.opens], ids=lambda form: form.name
)
def test_a_call_that_a_tag_has_begun_is_no_content(form: ToolFormatName) -> None:
    tag = form.value.opens[0]
    calls = write_calls(TWO, form)
    text = f"Let me look.\n{calls if tag in calls else tag + calls}"
    for length in range(text.index(tag) + len(tag), len(text)):
        assert read([text[:length]], options(form), is_cut=True).content == "Let me look."


@pytest.mark.parametrize(
    ("form", "text", "content"),
    [
        ("hermes", "a <", "a <"),
        ("hermes", "see <tool_call> now", "see <tool_call> now"),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>\nDone: a <', "Done: a <"),
        ("hermes", '<tool_call>{"name": "now"}</tool_call>\nDone.\n', "Done.\n"),
        ("generic", '{"title": "A sto', '{"title": "A sto'),
        ("generic", '```json\n{"title": "A sto', '```json\n{"title": "A sto'),
        ("llama3_json", '{"title": "A sto', '{"title": "A sto'),
        ("pythonic", "[1, 2", "[1, 2"),
    ],
)
def test_an_answer_that_is_cut_is_content(form: str, text: str, content: str) -> None:
    assert read([text], options(ToolFormatName[form]), is_cut=True).content == content


@FORMATS
def test_an_enforced_answer_that_is_cut_is_content(form: ToolFormatName) -> None:
    """Beside calls a grammar may allow an answer, which begins as one of them does."""
    given = replace(REQUIRED, tool_format=form.value, has_calls_alone=False)
    text = write_calls(TWO, form)[:12]
    assert read([text], given, is_cut=True).content == text


def test_a_call_is_content_where_the_model_ends_it_before_its_name() -> None:
    text = '<tool_call>{"name": "ge'
    assert read([text], options(ToolFormatName.hermes)).content == text


def test_a_call_that_was_cut_in_an_open_reasoning_is_reasoning() -> None:
    call = '<tool_call>{"name": "now"}</tool_call>\n'
    given = options(ToolFormatName.hermes, in_reasoning=True)
    output = read([f'{call}<tool_call>{{"na'], given, is_cut=True)
    assert (output.calls, output.content) == ([], "")
    assert output.reasoning == f'{call}<tool_call>{{"na'
