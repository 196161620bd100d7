"""The events that a parser makes of an output's text."""

from typing import NamedTuple, TypeAlias


class ContentDelta(NamedTuple):
    """More of the text that the client reads."""

    text: str


class ReasoningTextDelta(NamedTuple):
    """More of what the model thought before it answered."""

    text: str


class CallStart(NamedTuple):
    """The model calls the tool of this name; `number` counts the calls of an output from 0. In some
    formats the model gives the call an `id`."""

    number: int
    name: str
    id: str | None = None


class CallArgumentsDelta(NamedTuple):
    """More of the JSON object that holds the arguments of a call."""

    number: int
    text: str


class CallEnd(NamedTuple):
    """The arguments of a call are complete: joined they are a JSON object."""

    number: int


CallEvent: TypeAlias = CallStart | CallArgumentsDelta | CallEnd
Event: TypeAlias = ContentDelta | ReasoningTextDelta | CallEvent
