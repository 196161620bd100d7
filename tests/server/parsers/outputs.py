"""Texts of outputs in every format, and what is read out of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.server.parsers.events import (
    CallArgumentsDelta,
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    ReasoningTextDelta,
)
from quire.server.parsers.formats import ReasoningFormatName, ToolFormatName
from quire.server.parsers.markup import Tools
from quire.server.parsers.output_parser import OutputParser, ParserOptions

TEXT = {"type": "string"}
TOOLS: Tools = {
    "get_weather": {"properties": {"city": TEXT, "days": {"type": "integer"}}},
    "search": {"properties": {"query": TEXT, "filter": {"type": "object"}, "all": {}}},
    "now": {},
}
THINK = ReasoningFormatName.think.value


@dataclass
class Call:
    """A call as it was read; `is_whole` once it has ended."""

    name: str
    arguments: str = ""
    is_whole: bool = False


@dataclass
class Read:
    """All events of an output, joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def named(self) -> list[tuple[str, object]]:
        """The calls, their arguments parsed."""
        return [(call.name, json.loads(call.arguments)) for call in self.calls]

    def add(self, event: Event) -> None:
        match event:
            case ContentDelta(text):
                self.content += text
            case ReasoningTextDelta(text):
                self.reasoning += text
            case CallStart(number, name):
                assert number == len(self.calls)
                self.calls.append(Call(name))
            case CallArgumentsDelta(number, text):
                assert number == len(self.calls) - 1 and not self.calls[number].is_whole
                self.calls[number].arguments += text
            case CallEnd(number):
                assert number == len(self.calls) - 1 and not self.calls[number].is_whole
                self.calls[number].is_whole = True


def options(name: ToolFormatName, *, in_reasoning: bool = False) -> ParserOptions:
    return ParserOptions(name.value, TOOLS, reasoning=THINK, in_reasoning=in_reasoning)


def read(parts: Iterable[str], given: ParserOptions, *, is_cut: bool = False) -> Read:
    """Return what comes out where the text comes in these parts, and was cut or ended by itself."""
    parser, output = OutputParser(given), Read()
    for part in parts:
        for event in parser.feed(part):
            output.add(event)
    for event in parser.end(is_cut=is_cut):
        output.add(event)
    return output
