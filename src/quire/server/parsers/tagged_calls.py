"""Reads calls whose parameters stand in tags: their values are text, and become JSON as the tool's
schema says."""

from collections.abc import Mapping

from quire.server.parsers.formats import TaggedCall
from quire.server.parsers.json_scanner import JsonScanner, NotJson
from quire.server.parsers.markup import (
    MAX_NAME_CHARS,
    CallWriter,
    NotACall,
    read_as_json,
    to_json,
)
from quire.server.parsers.text_source import Reading

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def read_tagged_call(syntax: TaggedCall, writer: CallWriter) -> Reading[None]:
    """Read a call whose parameters stand in tags. Raises NotACall."""
    source = writer.source
    name = yield from _read_name(syntax, writer)
    writer.begin(name)
    writer.add("{")
    properties = writer.tools[name].get("properties")
    known: set[str] = set()
    while True:
        source.mark()
        yield from source.skip_space()
        if not (yield from source.accept(syntax.key_open)):
            break
        key = yield from _read_to(syntax.key_close, writer)
        if syntax.value_open:
            yield from source.skip_space()
        if key in known or not (yield from source.accept(syntax.value_open)):
            raise NotACall
        source.unmark()
        writer.add(f"{', ' if known else ''}{to_json(key)}: ")
        known.add(key)
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if _is_text(schema):
            yield from _send_text(syntax.value_close, writer)
        else:
            writer.add((yield from _read_value(syntax.value_close, writer)))
    if not (syntax.close and (yield from source.accept(syntax.close))):
        if any(tag.startswith(source.rest()) for tag in (syntax.key_open, syntax.close)):
            raise NotACall  # the output was cut: more parameters might have come
        source.rewind()
    writer.add("}")
    writer.end()


def _read_name(syntax: TaggedCall, writer: CallWriter) -> Reading[str]:
    name = ""
    while (found := (yield from writer.source.read_until((*syntax.name_stops,)))).tag is None:
        name += found.text
        if not found.text or len(name) > MAX_NAME_CHARS:
            raise NotACall
    has_closed = yield from writer.source.accept(syntax.name_close)
    if not has_closed and syntax.name_close.startswith(writer.source.rest()):
        raise NotACall  # the output was cut: parameters might have come
    return (name + found.text).strip()


def _is_text(schema: object) -> bool:
    """Return whether a value can be nothing but text, which is sent as it comes."""
    return not isinstance(schema, Mapping) or schema.get("type") == "string"


def _read_value(tag: str, writer: CallWriter) -> Reading[str]:
    """Return a value as JSON, and read the tag after it. One that is JSON ends where the JSON does,
    as a string in it may hold the tag; any other is text."""
    writer.source.mark()
    value = yield from _read_json(tag, writer)
    if value is not None:
        writer.source.unmark()
        return value
    writer.source.rewind()
    text = (yield from _read_to(tag, writer)).removeprefix("\n").removesuffix("\n")
    return read_as_json(_PYTHON_WORDS.get(text, text)) or to_json(text)


def _read_json(tag: str, writer: CallWriter) -> Reading[str | None]:
    scanner, source = JsonScanner(), writer.source
    parts: list[str] = []
    while not scanner.is_done and (yield from source.wait()):
        try:
            number, made = scanner.scan(source.rest())
        except NotJson:
            return None
        source.take(number)
        parts.append(made)
    yield from source.skip_space()
    has_ended = scanner.is_done and (yield from source.accept(tag))
    return read_as_json("".join(parts)) if has_ended else None


def _read_to(tag: str, writer: CallWriter) -> Reading[str]:
    """Return the text before a tag, and read the tag."""
    parts: list[str] = []
    while (found := (yield from writer.source.read_until((tag,)))).tag is None:
        if not found.text:
            raise NotACall
        parts.append(found.text)
    yield from writer.source.accept(tag)
    return "".join((*parts, found.text))


def _send_text(tag: str, writer: CallWriter) -> Reading[None]:
    """Send the text before a tag as a JSON string while it comes, and read the tag.

    A line end after the opening tag and one before the closing tag are no part of it.
    """
    source = writer.source
    writer.add('"')
    yield from source.accept("\n")
    while True:
        found = yield from source.read_until((f"\n{tag}", tag))
        writer.add(to_json(found.text)[1:-1])
        if found.tag is not None:
            break
        if not found.text:
            raise NotACall
    yield from source.accept(found.tag)
    writer.add('"')
