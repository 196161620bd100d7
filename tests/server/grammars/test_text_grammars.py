"""The one text of a call follows the client's own grammar, in formats that write it as it is."""

import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.grammars.line_ends import may_run_on
from quire.server.grammars.source import GrammarKind, GrammarSource
from quire.server.grammars.tool_calls import ToolUse, tool_calls
from quire.server.grammars.tool_schemas import CallableTool
from quire.server.parsers.formats import TaggedCall, ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.grammars.walks import Walk, accepts
from tests.server.parsers.outputs import read

TAGGED = [each for each in ToolFormatName if isinstance(each.value.syntax[0], TaggedCall)]
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " name LF line+
name: /[a-z]+/
line: "+" /[^<\n]*/ LF -> line
%import common.LF
"""
IS_PATCH = re.compile(
    r"\*\*\* Begin Patch\n(\*\*\* Add File: [a-z]+\n(\+[^<\n]*\n)+)+\*\*\* End Patch\n?"
)
LINES = r'start: (/[ab]*/ "\n")+ /c?/'
IS_LINES = re.compile(r"([ab]*\n)+c?")


def tool(name: str, lark: str) -> CallableTool:
    source = GrammarSource(GrammarKind.GRAMMAR, lark, "tools[0].format.definition")
    return CallableTool(name, SCHEMA, "tools[0]", "tools[0].format", text_grammar=source)


def inputs(text: str, form: ToolFormatName) -> list[object]:
    """The inputs of the calls of an output, which is calls alone."""
    output = read([text], ParserOptions(form.value, {"patch": SCHEMA}))
    assert not output.content and all(call.is_whole for call in output.calls)
    return [json.loads(call.arguments)["input"] for call in output.calls]


@pytest.mark.parametrize("form", TAGGED, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("lark", "is_it", "words"),
    [
        (PATCH, IS_PATCH, ["*** Begin Patch\n", "*** Add File: ", "+", "\n", "*** End Patch"]),
        (LINES, IS_LINES, ["a", "b", "\n", "c"]),
    ],
    ids=["patch", "lines"],
)
@given(seed=st.integers(0, 2**32))
@cases(40)
def test_the_text_of_a_required_call_is_of_the_grammar(
    form: ToolFormatName, lark: str, is_it: re.Pattern[str], words: list[str], seed: int
) -> None:
    body = tool_calls(form.value, ToolUse([tool("patch", lark)], True, True), {})
    tags = [tag for tag in form.value.tags if tag]
    walk = Walk(body, [*tags, *words], Random(seed)).go(160)
    if walk.has_ended:
        found = inputs(walk.text, form)
        assert found
        assert [text for text in found if not is_it.fullmatch(str(text))] == []


WRITTEN = {
    ToolFormatName.qwen3_coder: "<tool_call>\n<function=patch>\n<parameter=input>\n{}\n</parameter>"
    "\n</function>\n</tool_call>",
    ToolFormatName.glm45: "<tool_call>patch\n<arg_key>input</arg_key>\n<arg_value>\n{}\n"
    "</arg_value>\n</tool_call>",
    ToolFormatName.seed_oss: "<seed:tool_call>\n<function=patch>\n<parameter=input>\n{}\n"
    "</parameter>\n</function>\n</seed:tool_call>",
    ToolFormatName.minimax_m2: '<minimax:tool_call>\n<invoke name="patch">\n'
    '<parameter name="input">\n{}\n</parameter>\n</invoke>\n</minimax:tool_call>',
}


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_call_holds_a_patch_and_nothing_else(form: ToolFormatName, end: str) -> None:
    text = f"*** Begin Patch\n*** Add File: hi\n+one\n+\n*** End Patch{end}"
    for is_required in (True, False):
        body = tool_calls(form.value, ToolUse([tool("patch", PATCH)], is_required, True), {})
        written = WRITTEN[form].replace("{}", text)
        assert accepts(body, written)
        assert inputs(written, form) == [text]
        assert not accepts(body, WRITTEN[form].replace("{}", "hello"))


TERMS = {
    "/[a-z]+/": "abc",
    "/.*/": "a <b> c",
    "/[^\\r\\n]*/": "</x>",
    '"lit"': "lit",
    "WORD": "word",
    "(WORD WS)*": "a b ",
    "(WORD WS_INLINE)*": "a b ",
    "NL*": "\n",
    "(WORD NL)*": "a\nb\n",
    'WORD "\\n"?': "a\n",
    "/[\\s\\S]+/": "any\nthing",
    "/[^x]*/": "a\nb",
    "/([a-z]*\\n)+/": "a\n\n",
}
"""Expressions, and a text that each matches."""


@pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
@given(lines=st.lists(st.sampled_from(sorted(TERMS)), min_size=1, max_size=4))
@cases(40)
def test_a_text_of_a_grammar_that_does_not_run_on_can_end(
    form: ToolFormatName, lines: list[str]
) -> None:
    start = ' "\\n" '.join(lines)
    lark = f"start: {start}\nWORD: /[a-z]+/\nNL: /\\r?\\n/\n%import common.WS_INLINE"
    lark += "\n%import common.WS" * ("WS)" in lark)
    text = "\n".join(TERMS[each] for each in lines)
    body = tool_calls(form.value, ToolUse([tool("patch", lark)], True, True), {})
    assert may_run_on(lark) or accepts(body, WRITTEN[form].replace("{}", text))
