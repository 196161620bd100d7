"""Streams of messages: joined they are the whole message, however the output is split."""

from collections.abc import Iterator, Sequence

import anthropic
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.request import NewRequest
from quire.server.apis.anthropic.blocks import BlockStream, joined_blocks, parts_of
from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import Ending, GatheredOutput, OutputDelta
from quire.server.generation.parsed_output import ParsedOutput
from quire.server.parsers.formats import ToolFormatName
from quire.server.text.tokenizer import TextTokenizer
from tests.profiles import cases
from tests.server.apis.anthropic import joined
from tests.server.apis.anthropic.test_messages import ASKED, MESSAGES, TOOL
from tests.server.apis.openai.test_tools import CALL, says
from tests.server.parsers.outputs import options
from tests.server.served import MODEL, Served

PIECES = st.sampled_from(
    [
        *("Well", " ", "\n", "é{", "<think>Hm. ", "</think>", "so", "<tool_call>", "</tool_call>"),
        '<tool_call>{"name": "search", "arguments": {"query": "a\\u00e9", "all": [1.50, 2]}}',
        '</tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": 1, "b": "cut',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


OPTIONS = TextOptions(parsing=options(ToolFormatName.hermes), keeps_order=True)


def deltas(parts: Sequence[Sequence[str]]) -> Iterator[OutputDelta]:
    """What an output of these tokens makes, where the engine sends them in these deltas."""
    parsed = ParsedOutput(OPTIONS, "request")
    for tokens in parts:
        for token in tokens:
            parsed.feed(token, 1)
        yield parsed.take(OutputDelta())
    yield parsed.take(OutputDelta(ending=Ending("stop")))


def whole_blocks(parts: Sequence[Sequence[str]]) -> object:
    gathered = GatheredOutput()
    for delta in deltas(parts):
        gathered.add(delta)
    blocks = joined_blocks(parts_of(gathered.joined(), OPTIONS))
    return msgspec.json.decode(msgspec.json.encode(blocks))


def streamed_blocks(parts: Sequence[Sequence[str]]) -> object:
    stream, events = BlockStream(), []
    for delta in deltas(parts):
        for part in parts_of(delta, OPTIONS):
            events += stream.add(part)
    events += stream.end()
    return joined.joined_blocks(msgspec.json.decode(msgspec.json.encode(events)))


@given(TEXTS, st.data())
@cases(200)
def test_a_stream_of_any_split_is_the_whole_message(said: str, data: st.DataObject) -> None:
    tokens, sent = [""], [list[str]()]
    for character in said:
        if data.draw(st.booleans()):
            tokens.append("")
        tokens[-1] += character
    for token in tokens:
        if data.draw(st.booleans()):
            sent.append([])
        sent[-1].append(token)
    whole = whole_blocks([[said]])
    assert whole_blocks(sent) == whole
    assert streamed_blocks(sent) == streamed_blocks([[said]]) == whole


def test_blocks_come_in_the_order_in_which_they_were_written() -> None:
    said = (
        f"<think>Hm.</think>Let me see.{CALL.replace('find', 'search')}Found?<think>So.</think>Yes."
    )
    blocks = streamed_blocks([[said]])
    assert isinstance(blocks, list)
    kinds = [block["type"] for block in blocks]
    assert kinds == ["thinking", "text", "tool_use", "text", "thinking", "text"]


@pytest.mark.parametrize(
    "said",
    ["Hello there.", f"Let me see.\n{CALL}\n{CALL}", f"{CALL}And that is all.", "one STOP two", ""],
)
def test_a_stream_is_the_whole_message(served: Served, tokenizer: TextTokenizer, said: str) -> None:
    served.engine.script = says(said, tokenizer)
    asked = {"messages": [ASKED], "max_tokens": 90, "tools": [TOOL], "stop_sequences": ["STOP"]}
    whole = served.client.post(MESSAGES, json=asked).json()
    reply = served.client.post(MESSAGES, json=asked | {"stream": True})
    start, *events, delta, stop = joined.events(reply)
    message = start["message"]
    assert isinstance(message, dict)
    assert (start["type"], stop) == ("message_start", {"type": "message_stop"})
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    ids = [block.pop("id", None) for block in whole["content"]]
    blocks = joined.joined_blocks(events)
    assert [block.pop("id", None) is None for block in blocks] == [each is None for each in ids]
    assert blocks == whole["content"]
    ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert delta == {"type": "message_delta", "delta": ending, "usage": whole["usage"]}


def test_a_failure_in_the_middle_is_an_event(served: Served) -> None:
    def fails(_: NewRequest) -> Iterator[int]:
        return iter((100, 101, -1))

    served.engine.script = fails
    asked = {"messages": [ASKED], "max_tokens": 9, "stream": True}
    *_, last = joined.events(served.client.post(MESSAGES, json=asked))
    error = last["error"]
    assert isinstance(error, dict)
    assert (last["type"], error["type"]) == ("error", "api_error")
    assert last["request_id"]


def test_the_anthropic_client_reads_a_stream(served: Served, tokenizer: TextTokenizer) -> None:
    served.engine.script = says(f"Let me see.\n{CALL}", tokenizer)
    with (
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client,
        client.messages.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=90,
            tools=[{"name": "find", "input_schema": {"type": "object"}}],
        ) as stream,
    ):
        said = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(said) > 1 and "".join(said) == "Let me see."
    block, use = message.content
    assert block.type == "text" and block.text == "Let me see."
    assert use.type == "tool_use" and use.input == {"n": 7}
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_read_input_tokens == 3
