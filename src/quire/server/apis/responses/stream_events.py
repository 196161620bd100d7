"""The events of a streamed response, as OpenAI types them. Each has its place in the stream, which
grows by one, and of an item its place in the output."""

from typing import TypeAlias

import msgspec

from quire.server.apis.responses.protocol import Anything


class ResponseEvent(msgspec.Struct, frozen=True):
    """The response as it is now: created, in progress, or at its end."""

    sequence_number: int
    response: Anything
    type: str


class ItemAdded(msgspec.Struct, frozen=True):
    """An item of the output begins."""

    sequence_number: int
    output_index: int
    item: Anything
    type: str = "response.output_item.added"


class ItemDone(msgspec.Struct, frozen=True):
    """An item of the output is as it stays."""

    sequence_number: int
    output_index: int
    item: Anything
    type: str = "response.output_item.done"


class PartAdded(msgspec.Struct, frozen=True):
    """The one part of a message or of a reasoning begins."""

    sequence_number: int
    output_index: int
    item_id: str
    part: Anything
    content_index: int = 0
    type: str = "response.content_part.added"


class PartDone(msgspec.Struct, frozen=True):
    """The one part of a message or of a reasoning is as it stays."""

    sequence_number: int
    output_index: int
    item_id: str
    part: Anything
    content_index: int = 0
    type: str = "response.content_part.done"


class TextDelta(msgspec.Struct, frozen=True):
    """More of a message; `logprobs` are empty unless they were asked for."""

    sequence_number: int
    output_index: int
    item_id: str
    delta: str
    logprobs: Anything = ()
    content_index: int = 0
    type: str = "response.output_text.delta"


class TextDone(msgspec.Struct, frozen=True):
    """The whole text of a message."""

    sequence_number: int
    output_index: int
    item_id: str
    text: str
    logprobs: Anything = ()
    content_index: int = 0
    type: str = "response.output_text.done"


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of a reasoning."""

    sequence_number: int
    output_index: int
    item_id: str
    delta: str
    content_index: int = 0
    type: str = "response.reasoning_text.delta"


class ReasoningDone(msgspec.Struct, frozen=True):
    """The whole text of a reasoning."""

    sequence_number: int
    output_index: int
    item_id: str
    text: str
    content_index: int = 0
    type: str = "response.reasoning_text.done"


class ArgumentsDelta(msgspec.Struct, frozen=True):
    """More of the arguments of a call, which are JSON."""

    sequence_number: int
    output_index: int
    item_id: str
    delta: str
    type: str = "response.function_call_arguments.delta"


class ArgumentsDone(msgspec.Struct, frozen=True):
    """The whole arguments of a call."""

    sequence_number: int
    output_index: int
    item_id: str
    name: str
    arguments: str
    type: str = "response.function_call_arguments.done"


class CustomInputDelta(msgspec.Struct, frozen=True):
    """More of the input of a custom tool, which is text."""

    sequence_number: int
    output_index: int
    item_id: str
    delta: str
    type: str = "response.custom_tool_call_input.delta"


class CustomInputDone(msgspec.Struct, frozen=True):
    """The whole input of a custom tool."""

    sequence_number: int
    output_index: int
    item_id: str
    input: str
    type: str = "response.custom_tool_call_input.done"


class ErrorEvent(msgspec.Struct, frozen=True):
    """An error after the stream had begun; the failed response comes after it."""

    sequence_number: int
    message: str
    code: str | None
    param: str | None
    type: str = "error"


StreamEvent: TypeAlias = (
    ResponseEvent
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | ErrorEvent
)
EVENT_TYPES: tuple[type[msgspec.Struct], ...] = (
    ResponseEvent,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    TextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
    CustomInputDelta,
    CustomInputDone,
    ErrorEvent,
)


def encode_event(event: StreamEvent) -> bytes:
    """Return an event as it is sent."""
    data = msgspec.json.encode(event)
    return b"".join((b"event: ", event.type.encode(), b"\ndata: ", data, b"\n\n"))
