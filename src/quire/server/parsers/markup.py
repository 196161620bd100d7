"""Readers of tool calls share a writer, which holds the text, the tools and the events."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from quire.server.parsers.events import CallArgumentsDelta, CallEnd, CallEvent, CallStart, Event
from quire.server.parsers.json_scanner import JsonScanner, NotJson
from quire.server.parsers.text_source import SPACE, Reading, TextSource

MAX_HEAD_CHARS = 16 * 1024
"""A call of which more is read before its arguments begin to be sent is none."""
MAX_NAME_CHARS = 1024
"""The name of a call with the markup around it is at most so long."""
Tools: TypeAlias = Mapping[str, Mapping[str, object]]
"""The JSON schema of the parameters of each tool, by its name."""


class NotACall(Exception):
    """The text that comes next is no part of a call."""


class CallWriter:
    """Makes the events of one call after another.

    source: what was read of a call is final from its first event on; before, it is since the mark.
    on_call: called where a call begins, before its first event.
    """

    def __init__(
        self, source: TextSource, tools: Tools, events: list[Event], on_call: Callable[[], None]
    ) -> None:
        self.source = source
        self.tools = tools
        self.num_begun = 0
        self.in_call = False
        self._events = events
        self._on_call = on_call

    def begin(self, name: str | None, call_id: str | None = None) -> None:
        """Begin a call, with the id that the model gave it, if any. Raises NotACall for a name that
        is no tool's."""
        if name is None or name not in self.tools:
            raise NotACall
        self.check_head()
        self._on_call()
        self.source.unmark()
        self._events.append(CallStart(self.num_begun, name, call_id))
        self.num_begun += 1
        self.in_call = True

    def add(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text:
            self._events.append(CallArgumentsDelta(self.num_begun - 1, text))

    def end(self) -> None:
        """End the call that was begun last; what is read from here on may be given back."""
        self._events.append(CallEnd(self.num_begun - 1))
        self.in_call = False
        self.source.mark()

    def take_over(self, events: Sequence[Event]) -> None:
        """Make the events of calls that another writer has read those of the next calls."""
        self._on_call()
        calls = [each for each in events if isinstance(each, CallEvent)]
        self._events += [each._replace(number=each.number + self.num_begun) for each in calls]
        self.num_begun += sum(isinstance(each, CallStart) for each in calls)

    def check_head(self) -> None:
        """Raise NotACall if nothing has been sent of a call though much of it was read."""
        if self.source.num_since_mark > MAX_HEAD_CHARS:
            raise NotACall

    def read_json(self, send: Callable[[str], None]) -> Reading[None]:
        """Read a JSON value and `send` its parts. Raises NotACall where it is none."""
        scanner, source = JsonScanner(), self.source
        while (yield from source.wait()):
            try:
                number, text = scanner.scan(source.rest())
            except NotJson:
                raise NotACall from None
            source.take(number)
            send(text)
            if scanner.is_done:
                return
            self.check_head()
        raise NotACall


def are_whole_calls(events: Sequence[Event]) -> bool:
    """Return whether events are those of calls alone, at least one, all of them complete."""
    num_begun = sum(isinstance(event, CallStart) for event in events)
    num_ended = sum(isinstance(event, CallEnd) for event in events)
    texts = (event.text for event in events if not isinstance(event, CallEvent))
    return 0 < num_begun == num_ended and not any(text.strip(SPACE) for text in texts)


def to_json(value: object) -> str:
    """Return a value as JSON. Raises ValueError or TypeError for what JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, allow_nan=False)
    return text


def read_as_json(text: str) -> str | None:
    """Return the JSON that a text is, None if it is none. What Python has no value for, such as
    numbers that are too large, stays as it is written."""
    scanner = JsonScanner()
    try:
        number, made = scanner.scan(f"{text} ")
    except NotJson:
        return None
    if not scanner.is_done or text[number:].strip(SPACE):
        return None
    try:
        return to_json(json.loads(made))
    except ValueError:
        return made.strip(SPACE)
    except RecursionError:
        return None
