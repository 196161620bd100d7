"""Reads calls whose arguments are a JSON object, which is sent as it comes."""

import json
import re
from collections.abc import Callable

from quire.server.parsers.formats import HeadedCall, JsonCall
from quire.server.parsers.markup import MAX_NAME_CHARS, CallWriter, NotACall
from quire.server.parsers.text_source import Reading


def read_json_call(syntax: JsonCall, writer: CallWriter) -> Reading[None]:
    """Read a call that is a JSON object. Where the name comes last, the arguments wait for it.
    Raises NotACall."""
    yield from _expect(writer, "{")
    name: str | None = None
    held: str | None = None
    has_ended = False
    while not (yield from writer.source.accept("}")):
        key = yield from _read_string(writer)
        yield from _expect(writer, ":")
        yield from writer.source.skip_space()
        if has_ended:
            yield from writer.read_json(_ignore)
        elif key == "name":
            name = yield from _read_string(writer)
        elif key in syntax.arguments and name is not None:
            yield from read_arguments(name, writer)
            has_ended = True
        elif key in syntax.arguments:
            held = yield from _read_object(writer)
        else:
            yield from writer.read_json(_ignore)
        writer.check_head()
        yield from writer.source.skip_space()
        if not (yield from writer.source.accept(",")):
            yield from _expect(writer, "}")
            break
        yield from writer.source.skip_space()
    if not has_ended:
        writer.begin(name)
        writer.add(held or "{}")
        writer.end()


def read_headed_call(syntax: HeadedCall, writer: CallWriter) -> Reading[None]:
    """Read a call whose name stands before its arguments. Raises NotACall."""
    head = ""
    while (found := (yield from writer.source.read_until(("{",)))).text or found.tag:
        head += found.text
        if len(head) > MAX_NAME_CHARS:
            raise NotACall
        if found.tag:
            break
    match = re.fullmatch(syntax.head, head)
    if match is None:
        raise NotACall
    name, call_id = match["name"].strip(), match.groupdict().get("id")
    yield from read_arguments(name, writer, call_id)


def read_arguments(name: str, writer: CallWriter, call_id: str | None = None) -> Reading[None]:
    """Read the arguments of a call, which begins if they are an object. Raises NotACall."""
    if (yield from writer.source.peek()) != "{":
        raise NotACall
    writer.begin(name, call_id)
    yield from writer.read_json(writer.add)
    writer.end()


def _ignore(text: str) -> None:
    """Take a part of a value that no call has a place for."""


def _expect(writer: CallWriter, char: str) -> Reading[None]:
    yield from writer.source.skip_space()
    if not (yield from writer.source.accept(char)):
        raise NotACall


def _read_value(writer: CallWriter, first: str) -> Reading[str]:
    """Return a JSON value that begins with the character `first`."""
    if (yield from writer.source.peek()) != first:
        raise NotACall
    parts: list[str] = []
    send: Callable[[str], None] = parts.append
    yield from writer.read_json(send)
    return "".join(parts)


def _read_object(writer: CallWriter) -> Reading[str]:
    return (yield from _read_value(writer, "{"))


def _read_string(writer: CallWriter) -> Reading[str]:
    """Return the text of a JSON string."""
    return str(json.loads((yield from _read_value(writer, '"'))))
