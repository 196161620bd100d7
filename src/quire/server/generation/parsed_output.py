"""The text of one choice, parsed: content, reasoning and tool calls with their ids."""

from hashlib import sha256

from quire.server.generation.context import TextOptions
from quire.server.generation.output_delta import CallDelta, OrderedPart, OutputDelta, TokenRead
from quire.server.parsers.events import (
    CallArgumentsDelta,
    CallEnd,
    CallStart,
    ContentDelta,
    ReasoningTextDelta,
)
from quire.server.parsers.output_parser import OutputParser

ID_CHARS = 24


class ParsedOutput:
    """Parses the text of one choice as it comes; `request_id` makes the ids of its calls unique.

    num_reasoning_tokens: tokens before which, or after which, the text was reasoning.
    """

    def __init__(self, options: TextOptions, request_id: str) -> None:
        self.num_reasoning_tokens = 0
        self._parser = OutputParser(options.parsing)
        self._request_id = request_id
        form = options.parsing.tool_format
        self._id_length = None if form is None else form.id_length
        self._names_tool = options.names_tool
        self._keeps_reasoning = options.include_reasoning
        self._keeps_order = options.keeps_order
        self._num_begun = 0
        self._whole: set[int] = set()
        self._events: list[OrderedPart] = []
        self._ids: set[str] = set()

    @property
    def has_ended(self) -> bool:
        """Whether what may still come of the text is not read."""
        return self._parser.has_ended

    @property
    def in_call(self) -> bool:
        """Whether the arguments of a call are being read."""
        return self._parser.in_call

    def feed(self, text: str, num_tokens: int) -> None:
        """Take the text of the next token; of none, what was held back."""
        was_reasoning = self._parser.in_reasoning
        self._events += self._parser.feed(text)
        is_reasoning = was_reasoning or self._parser.in_reasoning
        if is_reasoning:
            self.num_reasoning_tokens += num_tokens
        if self._keeps_order:
            self._events += [TokenRead(is_reasoning)] * num_tokens

    def take(self, output: OutputDelta) -> OutputDelta:
        """Return `output` with what was made of the text since the last call, in place of the
        text."""
        ending = output.ending
        if ending is not None:
            self._events += self._parser.end(is_cut=ending.is_cut)
        events = [self._named(event) for event in self._events]
        self._events = []
        self._num_begun += sum(isinstance(event, CallStart) for event in events)
        self._whole.update(event.number for event in events if isinstance(event, CallEnd))
        broken: list[int] = []
        if ending is not None:
            broken = [number for number in range(self._num_begun) if number not in self._whole]
            ending = ending._replace(
                has_calls=self._num_begun > 0 and not broken and not self._names_tool,
                num_whole=len(self._whole),
                num_broken=len(broken),
            )
        content = (event.text for event in events if isinstance(event, ContentDelta))
        reasoning = (event.text for event in events if isinstance(event, ReasoningTextDelta))
        return output._replace(
            text="".join(content),
            reasoning="".join(reasoning) if self._keeps_reasoning else "",
            calls=_call_deltas(events) + tuple(CallDelta(each, is_broken=True) for each in broken),
            ending=ending,
            parts=tuple(events) if self._keeps_order else (),
        )

    def _named(self, event: OrderedPart) -> OrderedPart:
        """Return an event; that of a call's beginning has its id."""
        return event._replace(id=self._id(event)) if isinstance(event, CallStart) else event

    def _id(self, call: CallStart) -> str:
        """Return the id that the model gave to a call, unless another has it, or one of our own."""
        if call.id is not None and call.id not in self._ids:
            self._ids.add(call.id)
            return call.id
        digest = sha256(f"{self._request_id}/{call.number}".encode()).hexdigest()
        return f"call_{digest[:ID_CHARS]}" if self._id_length is None else digest[: self._id_length]


def _call_deltas(events: list[OrderedPart]) -> tuple[CallDelta, ...]:
    """Return the calls' parts, those of one call joined."""
    deltas: list[CallDelta] = []
    for event in events:
        if isinstance(event, CallStart):
            deltas.append(CallDelta(event.number, "", event.id, event.name))
        elif isinstance(event, CallArgumentsDelta):
            if not deltas:
                deltas.append(CallDelta(event.number))
            deltas[-1] = deltas[-1]._replace(arguments=deltas[-1].arguments + event.text)
    return tuple(deltas)
