"""In an output that a grammar enforces a tag opens something only before the answer begins: the
answer is content to the letter, whatever tags its text has."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.parsers.formats import ReasoningFormat, ReasoningFormatName, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import THINK, TOOLS, options, read
from tests.server.parsers.test_output_parser import Calls, fragments, in_parts, write_calls

REASONING = list(dict.fromkeys(form.value for form in ReasoningFormatName))
CALL: Calls = [("search", {"query": "a"})]


def thought(reasoning: ReasoningFormat, said: str) -> str:
    """A reasoning, and what opens the answer after it."""
    after = reasoning.next_opens + reasoning.answer_opens or "\n\n"
    return f"{reasoning.opens}{said}{reasoning.closes}{after}"


@pytest.mark.parametrize("reasoning", REASONING, ids=lambda form: form.opens)
@pytest.mark.parametrize("form", [*ToolFormatName, None], ids=lambda form: form and form.name)
@cases(40)
@given(st.data())
def test_an_answer_is_content_to_the_letter(
    form: ToolFormatName | None, reasoning: ReasoningFormat, data: st.DataObject
) -> None:
    tags = [*reasoning.tags, *(fragments(form.value) if form else []), " ", "\n", "word"]
    said = "".join(data.draw(st.lists(st.sampled_from(tags), max_size=10)))
    answer = json.dumps({"text": said, "call": write_calls(CALL, form) if form else ""})
    given = ParserOptions(form and form.value, TOOLS, reasoning=reasoning, is_enforced=True)
    place = data.draw(st.sampled_from(["opened here", "opened before", "closed before"]))
    text = thought(reasoning, "Hm.") + answer
    if place == "opened before":
        given, text = replace(given, in_reasoning=True), text.removeprefix(reasoning.opens)
    elif place == "closed before":
        given, text = replace(given, is_thought_out=True), answer
    output = read(in_parts(text, data.draw(st.lists(st.integers(0, len(text))))), given)
    assert (output.content, output.calls) == (answer, [])
    assert output.reasoning == ("" if place == "closed before" else "Hm.")


@pytest.mark.parametrize("form", list(ToolFormatName), ids=lambda form: form.name)
@cases(40)
@given(st.data())
def test_enforced_calls_are_read_as_any_others(form: ToolFormatName, data: st.DataObject) -> None:
    calls: Calls = [("search", {"query": "</think> <think>"}), ("now", {})]
    text = f"<think>Hm.</think>\n{write_calls(calls, form)}"
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10))
    output = read(in_parts(text, cuts), replace(options(form), is_enforced=True))
    assert (output.named, output.content, output.reasoning) == (calls, "", "Hm.")
    assert all(call.is_whole for call in output.calls)


def test_an_answer_may_begin_as_reasoning_does_where_that_is_closed() -> None:
    given = ParserOptions(reasoning=THINK, is_enforced=True, is_thought_out=True)
    assert read("<think> is a tag", given).content == "<think> is a tag"


def test_an_answer_in_a_channel_keeps_what_reads_as_the_end_of_a_message() -> None:
    harmony = ReasoningFormatName.gpt_oss.value
    given = ParserOptions(reasoning=harmony, is_enforced=True)
    text = '<|channel|>final<|message|>{"tag": "<|end|><|start|>assistant"}'
    assert read(text, given).content == '{"tag": "<|end|><|start|>assistant"}'


def test_a_free_text_beside_strict_tools_may_still_reason() -> None:
    text = "So. <think>Hm.</think> Well."
    output = read(text, options(ToolFormatName.hermes))
    assert (output.content, output.reasoning) == ("So.Well.", "Hm.")
