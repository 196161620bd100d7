"""The items of an output: events say what the whole response does, however the output comes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.apis.openai.wire import TokenInfo
from quire.server.apis.responses.items.tools import ClientTool
from quire.server.apis.responses.output import ItemOptions, OutputItems
from quire.server.apis.responses.stream_events import StreamEvent, encode_event
from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import Ending, GatheredOutput, LogprobEntry, OutputDelta
from quire.server.generation.parsed_output import ParsedOutput
from quire.server.parsers.formats import ToolFormatName
from quire.server.parsers.output_parser import ParserOptions
from tests.profiles import cases
from tests.server.parsers.outputs import options
from tests.server.parsers.test_output_parser import fragments

CALL = '{"name": "now", "arguments": {}}'
TEXT_DELTAS = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)
PARSED = ItemOptions()
RENAMED = {
    "get_weather": ClientTool("weather", "sky"),
    "search": ClientTool("search", is_custom=True),
}


def infos(entries: Sequence[LogprobEntry]) -> tuple[TokenInfo, ...]:
    return tuple(TokenInfo(str(each.token_id), float(each.token_id), (), ()) for each in entries)


def deltas_of(
    tokens: Sequence[str], sizes: Sequence[int], given: ParserOptions
) -> list[OutputDelta]:
    """The deltas of an output whose engine hands over so many tokens at once."""
    parsed = ParsedOutput(TextOptions(parsing=given, keeps_order=True), "request")
    deltas = list[OutputDelta]()
    sizes = [*sizes]
    numbered = [*enumerate(tokens)]
    while numbered or not deltas:
        size = sizes.pop() if sizes else len(numbered)
        taken, numbered = numbered[:size], numbered[size:]
        for _, text in taken:
            parsed.feed(text, 1)
        ending = None if numbered else Ending("stop")
        text = "".join(text for _, text in taken)
        logprobs = tuple(LogprobEntry(number, 0.0, (), 0) for number, _ in taken)
        deltas.append(parsed.take(OutputDelta(text, (), logprobs, ending)))
    return deltas


@dataclass
class Told:
    """What a client has heard of a stream: the texts and log probabilities of its items."""

    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[dict[str, object]]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    items: list[dict[str, object]] = field(default_factory=list)

    def hear(self, event: StreamEvent) -> None:
        head, _, data = encode_event(event).decode().strip().partition("\n")
        body = msgspec.json.decode(data.removeprefix("data: "))
        kind, index = body["type"], body["output_index"]
        assert head == f"event: {kind}"
        if kind == "response.output_item.added":
            assert (index, body["item"]["status"]) == (len(self.items), "in_progress")
            self.texts[index], self.logprobs[index] = "", []
        elif kind in TEXT_DELTAS:
            assert index == len(self.items)
            self.texts[index] += body["delta"]
            self.logprobs[index] += body.get("logprobs", [])
        elif kind == "response.output_item.done":
            self.items.append(body["item"])
        elif kind in ("response.content_part.done", "response.content_part.added"):
            self.parts.append(body["part"])
        else:
            assert self.texts[index] == body.get("text", body.get("arguments", body.get("input")))
            assert self.logprobs[index] == body.get("logprobs", [])


def told(deltas: Sequence[OutputDelta], given: ItemOptions = PARSED) -> tuple[Told, list[object]]:
    """What a stream of these deltas tells, and the items that the whole response has."""
    numbers, heard = count(), Told()
    output = OutputItems("-x", numbers, infos, given)
    made = [event for delta in deltas for event in output.take(delta)]
    made += output.end("completed")
    assert [event.sequence_number for event in made] == [*range(len(made))]
    for event in made:
        heard.hear(event)
    return heard, [msgspec.json.decode(item) for item in output.items]


def whole(deltas: Sequence[OutputDelta], given: ItemOptions = PARSED) -> list[object]:
    gathered = GatheredOutput()
    for delta in deltas:
        gathered.add(delta)
    _, items = told([gathered.joined()], given)
    return items


@pytest.mark.parametrize("form", ToolFormatName, ids=lambda form: form.name)
@cases(60)
@given(st.data())
def test_a_stream_tells_the_whole_response_however_the_output_is_split(
    form: ToolFormatName, data: st.DataObject
) -> None:
    tokens = data.draw(st.lists(st.sampled_from(fragments(form.value)), max_size=16))
    given = options(form, in_reasoning=data.draw(st.booleans()))
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=16))
    made = ItemOptions(data.draw(st.sampled_from([{}, RENAMED])), data.draw(st.booleans()))
    by_token = deltas_of(tokens, [1] * len(tokens), given)
    heard, items = told(deltas_of(tokens, sizes, given), made)
    assert heard.items == items == whole(by_token, made)
    for index, item in enumerate(items):
        assert isinstance(item, dict)
        said = item.get("content") or [{"text": item.get("arguments", item.get("input"))}]
        assert said[0]["text"] == heard.texts[index]
        assert said[0].get("logprobs", []) == heard.logprobs[index]
    joined = "".join(delta.text for delta in by_token)
    assert joined == "".join(text_of(item) for item in items if kind_of(item) == "message")
    by_chars = deltas_of([*"".join(tokens)], sizes, given)
    assert bare(told(by_chars, made)[0].items) == bare(items)


@pytest.mark.parametrize(
    ("tokens", "of_messages"),
    [
        (["Hi", " ho", "<tool_call>", CALL, "</tool_call>", "Bye"], [["0", "1", "2"], ["5"]]),
        (["<tool_call>", CALL, "</tool_call>", "Bye", "!"], [["3", "4"]]),
        (["<think>", "Hm", "</think>", "Bye"], [["3"]]),
        (["<think>", "Hm", "</think>", "<tool_call>", CALL, "</tool_call>"], []),
    ],
)
def test_log_probabilities_are_those_of_a_messages_tokens(
    tokens: list[str], of_messages: list[list[str]]
) -> None:
    heard, _ = told(deltas_of(tokens, [1] * len(tokens), options(ToolFormatName.hermes)))
    kept = [
        [str(each["token"]) for each in heard.logprobs[index]]
        for index, item in enumerate(heard.items)
        if kind_of(item) == "message"
    ]
    assert kept == of_messages


def kind_of(item: object) -> object:
    assert isinstance(item, dict)
    return item["type"]


def text_of(item: object) -> str:
    assert isinstance(item, dict)
    return str(item["content"][0]["text"])


def bare(items: Sequence[object]) -> object:
    """The items without log probabilities, which depend on what the tokens are."""
    encoded = msgspec.json.encode(items)
    decoded = msgspec.json.decode(encoded)
    for item in decoded:
        for part in item.get("content", ()):
            part.pop("logprobs", None)
    return decoded


@cases(50)
@given(st.lists(st.text(max_size=4), max_size=8))
def test_an_output_that_is_not_parsed_is_one_message(tokens: list[str]) -> None:
    deltas = [
        OutputDelta(text, (), (LogprobEntry(number, 0.0, (), 0),))
        for number, text in enumerate(tokens)
    ]
    plain = ItemOptions(is_parsed=False)
    heard, items = told(deltas, plain)
    assert heard.items == items == whole(deltas, plain)
    (item,) = items
    assert text_of(item) == "".join(tokens)
    assert [each["token"] for each in heard.logprobs[0]] == [str(i) for i in range(len(tokens))]
