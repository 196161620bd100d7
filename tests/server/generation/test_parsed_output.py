"""The calls of an output: their ids, which are the model's where it gives each call one of its own,
and whether all are whole."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import Ending, GatheredOutput, OutputDelta
from quire.server.generation.parsed_output import ParsedOutput
from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import TOOLS
from tests.server.parsers.test_output_parser import (
    CALLS,
    Calls,
    can_be_written,
    in_parts,
    write_calls,
)


def ids_of(form: ToolFormatName, text: str) -> list[str | None]:
    parsing = ParserOptions(form.value, {"find": {}, "look": {}})
    parsed = ParsedOutput(TextOptions(parsing=parsing), "request")
    parsed.feed(text, 1)
    return [call.id for call in parsed.take(OutputDelta(ending=Ending("stop"))).calls if call.name]


def kimi(*ids: str) -> str:
    calls = "".join(
        f"<|tool_call_begin|>{each}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for each in ids
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def test_the_ids_of_a_model_are_kept_and_unique() -> None:
    own, other, again = ids_of(
        ToolFormatName.kimi_k2, kimi("functions.find:3", "functions.look:4", "functions.find:3")
    )
    assert (own, other) == ("functions.find:3", "functions.look:4")
    assert again is not None and again.startswith("call_")


def test_ids_are_made_where_a_model_gives_none() -> None:
    call = '{"name": "find", "arguments": {}}'
    ids = ids_of(ToolFormatName.hermes, f"<tool_call>{call}</tool_call>" * 2)
    assert len({*ids}) == 2 and all(each and each.startswith("call_") for each in ids)
    (short,) = ids_of(ToolFormatName.mistral, f"[TOOL_CALLS][{call}]")
    assert short is not None and len(short) == 9


@pytest.mark.parametrize("form", list(ToolFormatName), ids=lambda form: form.name)
@cases(60)
@given(CALLS, st.data())
def test_only_whole_calls_are_a_reason_to_run_them(
    form: ToolFormatName, calls: Calls, data: st.DataObject
) -> None:
    """Wherever the text is cut: of a stream and of a whole output alike."""
    assume(can_be_written(calls, form))
    text = write_calls(calls, form)
    text = text[: data.draw(st.integers(0, len(text)))]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    parsed = ParsedOutput(TextOptions(parsing=ParserOptions(form.value, TOOLS)), "request")
    gathered = GatheredOutput()
    for part in in_parts(text, cuts):
        parsed.feed(part, 1)
        gathered.add(parsed.take(OutputDelta()))
    gathered.add(parsed.take(OutputDelta(ending=Ending("stop"))))
    output = gathered.joined()
    assert output.ending is not None
    whole = [call for call in output.calls if not call.is_broken]
    assert output.ending.has_calls == (len(whole) == len(output.calls) > 0)
    assert output.ending.num_whole == len(whole)
    for call in whole:
        assert isinstance(json.loads(call.arguments), dict)
