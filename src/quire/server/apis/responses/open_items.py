"""The item of an output that is being written. It tells of itself in events, and at its end it is
the item of the whole response."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from quire.server.apis.responses import stream_events as events
from quire.server.apis.responses.items.custom_input import CustomInput
from quire.server.apis.responses.items.sealed_reasoning import sealed
from quire.server.apis.responses.items.tools import ClientTool
from quire.server.apis.responses.protocol import (
    CallItem,
    CustomCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from quire.server.apis.responses.stream_events import StreamEvent

IN_PROGRESS = "in_progress"


class ItemPosition(NamedTuple):
    """The place of an item: its id, its index in the output, and the numbers of the stream."""

    item_id: str
    output_index: int
    numbers: Iterator[int]


class OpenMessage:
    """A message. Log probabilities come as the JSON of some of them, without the brackets."""

    def __init__(self, place: ItemPosition) -> None:
        self._place = place
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []

    def opening(self) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        item = MessageItem(item_id, IN_PROGRESS, ())
        yield events.ItemAdded(next(numbers), index, item)
        yield events.PartAdded(next(numbers), index, item_id, OutputText(""))

    def add(self, text: str, logprobs: bytes) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        self._texts.append(text)
        if logprobs:
            self._logprobs.append(logprobs)
        yield events.TextDelta(next(numbers), index, item_id, text, _list(logprobs))

    def closing(self, status: str) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        text, logprobs = "".join(self._texts), _list(b",".join(self._logprobs))
        part = msgspec.Raw(msgspec.json.encode(OutputText(text, logprobs)))
        yield events.TextDone(next(numbers), index, item_id, text, logprobs)
        yield events.PartDone(next(numbers), index, item_id, part)
        yield _done(self._place, MessageItem(item_id, status, (part,)))


class OpenReasoning:
    """A reasoning, which is sent as it is, and at its end as `encrypted_content` too if it
    `is_sealed`."""

    def __init__(self, place: ItemPosition, *, is_sealed: bool) -> None:
        self._place = place
        self._is_sealed = is_sealed
        self._texts: list[str] = []

    def opening(self) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        yield events.ItemAdded(next(numbers), index, ReasoningItem(item_id, IN_PROGRESS, ()))
        yield events.PartAdded(next(numbers), index, item_id, ReasoningText(""))

    def add(self, text: str, logprobs: bytes) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        self._texts.append(text)
        yield events.ReasoningDelta(next(numbers), index, item_id, text)

    def closing(self, status: str) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        part = ReasoningText("".join(self._texts))
        yield events.ReasoningDone(next(numbers), index, item_id, part.text)
        yield events.PartDone(next(numbers), index, item_id, part)
        content = sealed(part.text) if self._is_sealed else UNSET
        item = ReasoningItem(item_id, status, (part,), encrypted_content=content)
        yield _done(self._place, item)


class OpenCall:
    """A call of a function; it `is_whole` once its arguments are complete."""

    def __init__(self, place: ItemPosition, call_id: str, tool: ClientTool) -> None:
        self._place = place
        self._call_id = call_id
        self._tool = tool
        self._texts: list[str] = []
        self.is_whole = False

    def opening(self) -> Iterator[StreamEvent]:
        _, index, numbers = self._place
        yield events.ItemAdded(next(numbers), index, self._item(IN_PROGRESS))

    def add(self, text: str, logprobs: bytes) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        self._texts.append(text)
        yield events.ArgumentsDelta(next(numbers), index, item_id, text)

    def closing(self, status: str) -> Iterator[StreamEvent]:
        """Yield the last events. Arguments that broke off are not said to be done, whatever the
        `status` of the response."""
        item_id, index, numbers = self._place
        item = self._item("completed" if self.is_whole else "incomplete")
        if self.is_whole:
            yield events.ArgumentsDone(next(numbers), index, item_id, item.name, item.arguments)
        yield _done(self._place, item)

    def _item(self, status: str) -> CallItem:
        return CallItem(
            self._place.item_id,
            status,
            self._call_id,
            self._tool.name,
            "".join(self._texts),
            UNSET if self._tool.namespace is None else self._tool.namespace,
        )


class OpenCustomCall:
    """A call of a custom tool, of whose arguments the one text is its input; it `is_whole` once
    these are complete."""

    def __init__(self, place: ItemPosition, call_id: str, tool: ClientTool) -> None:
        self._place = place
        self._call_id = call_id
        self._tool = tool
        self._input = CustomInput()
        self._texts: list[str] = []
        self.is_whole = False

    def opening(self) -> Iterator[StreamEvent]:
        _, index, numbers = self._place
        yield events.ItemAdded(next(numbers), index, self._item(IN_PROGRESS))

    def add(self, text: str, logprobs: bytes) -> Iterator[StreamEvent]:
        yield from self._say(self._input.feed(text))

    def closing(self, status: str) -> Iterator[StreamEvent]:
        """Yield the last events. An input that broke off is not said to be done, whatever the
        `status` of the response."""
        yield from self._say(self._input.end())
        item_id, index, numbers = self._place
        item = self._item("completed" if self.is_whole else "incomplete")
        if self.is_whole:
            yield events.CustomInputDone(next(numbers), index, item_id, item.input)
        yield _done(self._place, item)

    def _say(self, text: str) -> Iterator[StreamEvent]:
        item_id, index, numbers = self._place
        if text:
            self._texts.append(text)
            yield events.CustomInputDelta(next(numbers), index, item_id, text)

    def _item(self, status: str) -> CustomCallItem:
        return CustomCallItem(
            self._place.item_id,
            status,
            self._call_id,
            self._tool.name,
            "".join(self._texts),
            UNSET if self._tool.namespace is None else self._tool.namespace,
        )


OpenItem: TypeAlias = OpenMessage | OpenReasoning | OpenCall | OpenCustomCall


def _done(place: ItemPosition, item: OutputItem) -> StreamEvent:
    raw = msgspec.Raw(msgspec.json.encode(item))
    return events.ItemDone(next(place.numbers), place.output_index, raw)


def _list(inner: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"[" + inner + b"]")
