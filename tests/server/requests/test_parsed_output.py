"""Ids of calls: those that the model gave, where it gives each call one of its own."""

from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from quire.server.requests.context import TextOptions
from quire.server.requests.output_delta import Ending, OutputDelta
from quire.server.requests.parsed_output import ParsedOutput


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
