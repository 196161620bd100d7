"""The items of one output, made of its deltas as they come or of the whole output at once: both are
one way, so that a streamed response cannot differ from one that is not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from quire.server.apis.openai.wire import TokenInfo
from quire.server.apis.responses.items.tools import ClientTool
from quire.server.apis.responses.open_items import (
    ItemPosition,
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
)
from quire.server.apis.responses.stream_events import ItemDone, StreamEvent
from quire.server.generation.output_delta import LogprobEntry, OrderedPart, OutputDelta, TokenRead
from quire.server.http.sliced_json import SLICE
from quire.server.parsers.events import (
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    ReasoningTextDelta,
)


class ItemOptions(NamedTuple):
    """The ways in which items differ from one request to another.

    renamed_tools: the client's tools by the names of the model, where these are others.
    seals_reasoning: whether items of reasoning have an `encrypted_content`.
    is_parsed: whether the output has parts; else it is one text.
    """

    renamed_tools: Mapping[str, ClientTool] = {}
    seals_reasoning: bool = False
    is_parsed: bool = True


class OutputItems:
    """Makes items and the events that tell of them. Reasoning, text and each call are items in the
    order in which the model wrote them.

    suffix: makes the ids of the items unique.
    numbers: those of the stream's events.
    name_tokens: makes the log probabilities that are sent.
    items: the JSON of those that are complete.
    """

    def __init__(
        self,
        suffix: str,
        numbers: Iterator[int],
        name_tokens: Callable[[Sequence[LogprobEntry]], tuple[TokenInfo, ...]],
        options: ItemOptions,
    ) -> None:
        self.items: list[msgspec.Raw] = []
        self._suffix = suffix
        self._numbers = numbers
        self._name_tokens = name_tokens
        self._options = options
        self._open: OpenItem | None = None
        self._text: list[str] = []
        self._logprobs: list[LogprobEntry] = []

    def take(self, delta: OutputDelta) -> Iterator[StreamEvent]:
        """Yield the events of the output's next delta."""
        logprobs = iter(delta.logprobs)
        for part in self._parts_of(delta):
            if isinstance(part, TokenRead):
                self._read_token(next(logprobs, None), part)
            elif isinstance(part, CallEnd):
                assert isinstance(self._open, OpenCall | OpenCustomCall)
                self._open.is_whole = True
            else:
                begun = self._begun_by(part)
                if begun is not None:
                    yield from self._begin(begun)
                self._text += [] if isinstance(part, CallStart) else [part.text]
        if self._text:
            yield from self._flush()

    def end(self, status: str) -> Iterator[StreamEvent]:
        """Yield the last events; `status` is that of the last item, unless it is a call, which is
        completed where its arguments are. An output that says nothing is an empty message."""
        if self._open is None:
            yield from self._begin(OpenMessage(self._place("msg")))
        yield from self._close(status)

    def _begun_by(self, part: Event) -> OpenItem | None:
        """Return the item that a part begins, None where it is more of the open one."""
        if isinstance(part, CallStart):
            return self._call(part)
        if isinstance(part, ContentDelta) and not isinstance(self._open, OpenMessage):
            return OpenMessage(self._place("msg"))
        if isinstance(part, ReasoningTextDelta) and not isinstance(self._open, OpenReasoning):
            is_sealed = self._options.seals_reasoning
            return OpenReasoning(self._place("rs"), is_sealed=is_sealed)
        return None

    def _call(self, part: CallStart) -> OpenCall | OpenCustomCall:
        tool = self._options.renamed_tools.get(part.name) or ClientTool(part.name)
        if tool.is_custom:
            return OpenCustomCall(self._place("ctc"), str(part.id), tool)
        return OpenCall(self._place("fc"), str(part.id), tool)

    def _parts_of(self, delta: OutputDelta) -> Iterator[OrderedPart]:
        if self._options.is_parsed:
            yield from delta.parts
            return
        if delta.text:
            yield ContentDelta(delta.text)
        yield from (TokenRead(is_reasoning=False) for _ in delta.logprobs)

    def _read_token(self, entry: LogprobEntry | None, token: TokenRead) -> None:
        """Keep the log probabilities of a token of a message: those of reasoning and of calls are
        not sent."""
        in_call = isinstance(self._open, OpenCall | OpenCustomCall)
        is_content = not (token.is_reasoning or in_call)
        if entry is not None and is_content:
            self._logprobs.append(entry)

    def _place(self, kind: str) -> ItemPosition:
        index = len(self.items) + (self._open is not None)
        return ItemPosition(f"{kind}{self._suffix}-{index}", index, self._numbers)

    def _begin(self, item: OpenItem) -> Iterator[StreamEvent]:
        if self._open is not None:
            yield from self._close("completed")
        if not isinstance(item, OpenMessage):
            self._logprobs.clear()
        self._open = item
        yield from item.opening()

    def _flush(self) -> Iterator[StreamEvent]:
        """Send what has gathered of the open item."""
        text = "".join(self._text)
        self._text.clear()
        logprobs = b""
        if isinstance(self._open, OpenMessage):
            logprobs = self._take_logprobs()
        if self._open is not None:
            yield from self._open.add(text, logprobs)

    def _take_logprobs(self) -> bytes:
        """Return the JSON of the log probabilities that have gathered, without brackets."""
        entries = self._logprobs
        slices = (entries[start : start + SLICE] for start in range(0, len(entries), SLICE))
        encoded = b",".join(msgspec.json.encode(self._name_tokens(each))[1:-1] for each in slices)
        entries.clear()
        return encoded

    def _close(self, status: str) -> Iterator[StreamEvent]:
        assert self._open is not None
        if self._text or (isinstance(self._open, OpenMessage) and self._logprobs):
            yield from self._flush()
        for event in self._open.closing(status):
            if isinstance(event, ItemDone):
                assert isinstance(event.item, msgspec.Raw)
                self.items.append(event.item)
            yield event
        self._open = None
